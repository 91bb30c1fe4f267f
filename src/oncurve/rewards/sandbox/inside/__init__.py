"""What runs on the other side of the border: imported by the sandbox's own interpreters, which have neither Oncurve nor
any installed package. So nothing here imports anything but the standard library and its neighbours, these relatively.
"""
