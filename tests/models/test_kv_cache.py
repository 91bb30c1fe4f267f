import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionLayer

from families import FAMILIES, VOCABULARY, tiny_model
from oncurve.models.causal_lm import causal_lm
from oncurve.models.kv_cache import GrowingLayer, growing_cache

ROOM = 5


def states(rows, tokens, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, rows, 3, tokens, 8, generator=generator).unbind(0)


def assert_same(layer, expected):
    assert torch.equal(layer.keys, expected.keys)
    assert torch.equal(layer.values, expected.values)
    assert layer.get_seq_length() == expected.get_seq_length()
    assert layer.get_mask_sizes(1) == expected.get_mask_sizes(1)


def pair():
    return GrowingLayer(ROOM), DynamicLayer()


def add(layers, rows, tokens, seed):
    found, expected = (layer.update(*states(rows, tokens, seed)) for layer in layers)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    assert_same(*layers)


def test_token_by_token_past_the_room_to_spare():
    layers = pair()
    add(layers, 3, 5, seed=0)
    for step in range(2 * ROOM + 3):
        add(layers, 3, 1, seed=step)
    add(layers, 3, 3 * ROOM, seed=1)


def test_rows_are_repeated_left_out_and_reordered():
    layers = pair()
    add(layers, 3, 4, seed=0)
    for step, indices in enumerate([[0, 0, 1, 1, 1, 2], [5, 0, 3], [2, 1, 0], [1]]):
        for layer in layers:
            layer.reorder_cache(torch.tensor(indices))
        assert_same(*layers)
        add(layers, len(indices), 1, seed=step)


def test_the_other_operations_of_a_dynamic_layer():
    layers = pair()
    add(layers, 2, 6, seed=0)
    for operation in (
        lambda layer: layer.crop(-2),
        lambda layer: layer.batch_select_indices(torch.tensor([1, 0, 1])),
        lambda layer: layer.batch_repeat_interleave(2),
    ):
        for layer in layers:
            operation(layer)
        assert_same(*layers)
        add(layers, len(layers[1].keys), 1, seed=1)
    for layer in layers:
        layer.reset()
    add(layers, 4, 2, seed=2)


def test_rows_of_an_empty_layer():
    layer = GrowingLayer(ROOM)
    layer.reorder_cache(torch.tensor([0, 0]))
    layer.batch_repeat_interleave(2)
    assert layer.get_seq_length() == 0


def test_a_token_is_written_in_place():
    layer = GrowingLayer(ROOM)
    layer.update(*states(2, 5, 0))
    places = layer.keys.data_ptr(), layer.values.data_ptr()
    for step in range(ROOM):
        layer.update(*states(2, 1, step))
        assert (layer.keys.data_ptr(), layer.values.data_ptr()) == places
    layer.update(*states(2, 1, 0))
    assert layer.keys.data_ptr() != places[0]


def test_special_layers_stay_as_they_are():
    kinds = {
        name: [type(layer) for layer in growing_cache(tiny_model(name).config, ROOM).layers]
        for name in ("llama", "mistral-window", "gemma3", "lfm2")
    }
    assert kinds == {
        "llama": [GrowingLayer, GrowingLayer],
        "mistral-window": [DynamicSlidingWindowLayer, DynamicSlidingWindowLayer],
        "gemma3": [DynamicSlidingWindowLayer, GrowingLayer],
        "lfm2": [LinearAttentionLayer, GrowingLayer],
    }


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_reads_the_same_with_it_as_with_a_dynamic_cache(family):
    lm = causal_lm(tiny_model(family))
    tokens = torch.randint(VOCABULARY, (4, 20), generator=torch.Generator().manual_seed(0))
    caches = growing_cache(lm.module.config, ROOM), DynamicCache(config=lm.module.config)

    def read(rows, start, end):
        found, expected = (lm.hidden(tokens[rows, start:end], cache=cache) for cache in caches)
        assert torch.equal(found, expected)
        whole = lm.hidden(tokens[rows, :end])[:, start:]
        torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-4)

    read([0, 1, 2, 3], 0, 6)
    read([0, 1, 2, 3], 6, 7)
    for cache in caches:
        cache.reorder_cache(torch.tensor([3, 0, 0]))
    for position in range(7, 14):
        read([3, 0, 0], position, position + 1)
