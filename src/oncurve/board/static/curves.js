// The curves of report.html, drawn by uPlot, and the same numbers for keyboard and screen reader.

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colour = (i) => css(`--series-${(i % 6) + 1}`);
const faded = (i, alpha) => colour(i) + Math.round(255 * alpha).toString(16).padStart(2, "0");
const plots = [];

// A running mean over about a twentieth of the points, drawn over the raw line, once there are enough of them.
const windowOf = (chart) => (!chart.smooth || chart.x.length < 30 ? 1 : 2 * Math.round(chart.x.length / 40) + 1);

function smooth(values, width) {
  const half = (width - 1) / 2;
  return values.map((value, i) => {
    if (value == null) return null;
    const near = values.slice(Math.max(0, i - half), i + half + 1).filter((v) => v != null);
    return near.reduce((sum, v) => sum + v, 0) / near.length;
  });
}

function stacked(series) {
  const total = series[0].y.map(() => 0);
  return series.map((s) => s.y.map((value, i) => (total[i] += value ?? 0)));
}

// uPlot's columns: what to draw, and for each column which line of the legend it belongs to.
function columns(chart) {
  const width = windowOf(chart), few = chart.x.length < 30;
  const table = [chart.x], series = [{}], bands = [];
  const add = (y, owner, options) => { table.push(y); series.push({ owner, points: { show: few, size: 6, fill: () => css("--card") }, width: 2, ...options }); return table.length - 1; };
  if (chart.stacked) {
    const sums = stacked(chart.series);
    for (let i = sums.length - 1; i >= 0; i--) {
      add(sums[i], i, { stroke: () => colour(i), fill: () => faded(i, 0.55), width: 1, points: { show: false } });
    }
    for (let c = 1; c < table.length - 1; c++) bands.push({ series: [c, c + 1] });
    return { table, series, bands, width };
  }
  chart.series.forEach((s, i) => {
    if (s.low) {
      const edge = { stroke: () => "transparent", width: 0, points: { show: false } };
      const high = add(s.high, i, edge), low = add(s.low, i, edge);
      bands.push({ series: [high, low], fill: () => faded(i, 0.14) });
    }
    if (width > 1) add(s.y, i, { stroke: () => faded(i, 0.4), width: 1, points: { show: false } });
    add(width > 1 ? smooth(s.y, width) : s.y, i, { stroke: () => colour(i), dash: i >= 6 ? [6, 4] : undefined });
  });
  return { table, series, bands, width };
}

function chartCard(chart) {
  const { table, series, bands, width } = columns(chart);
  const box = el("div", { class: "plot", tabindex: "0", role: "img", "aria-label": spoken(chart) });
  const at = el("span", { class: "at" });
  const values = chart.series.map(() => el("b", {}));
  const keys = chart.series.map((s, i) => el("button", { type: "button", "aria-pressed": "true", title: "show or hide" },
    el("i", { style: { background: `var(--series-${(i % 6) + 1})` }, "aria-hidden": "true" }), `${s.label} `, values[i]));
  const last = chart.x.length - 1;
  const digits = chart.series.map((s) => (s.y.every((v) => v == null || Number.isInteger(v)) && s.y.some((v) => v > 1) || s.y.every((v) => !v) ? 0 : 3));
  const read = (index) => {
    at.textContent = `${chart.x_label} ${chart.x[index ?? last]}`;
    chart.series.forEach((s, i) => { values[i].textContent = number(s.y[index ?? last], digits[i]); });
  };
  read(null);
  const node = el("article", { class: "card chart" }, el("h4", {}, chart.title),
    el("p", { class: "look" }, chart.look_for),
    el("div", { class: "legend" }, keys, at), box,
    el("p", { class: "glossary" }, chart.glossary, width > 1 && ` Bold: running mean of ${width} points.`),
    numbers(chart));
  plots.push({ box, draw: () => draw(chart, box, { table, series, bands }, keys, read) });
  return node;
}

function spoken(chart) {
  const lines = chart.series.map((s) => {
    const seen = s.y.filter((v) => v != null);
    return seen.length ? `${s.label} from ${number(seen[0])} to ${number(seen[seen.length - 1])}` : `${s.label} unknown`;
  });
  return `${chart.title}, ${plural(chart.x.length, "point")}: ${lines.join("; ")}. Arrow keys move along the curve.`;
}

function draw(chart, box, { table, series, bands }, keys, read) {
  const axis = (extra) => ({
    stroke: () => css("--quiet"), font: `11px ${css("--sans")}`, grid: { stroke: () => css("--line"), width: 1 },
    ticks: { show: false }, ...extra,
  });
  const short = (value) => value === 0 ? "0" : Math.abs(value) < 0.001 || Math.abs(value) >= 1e5 ? value.toExponential(0) : String(+value.toPrecision(4));
  const plot = new uPlot({
    width: Math.max(200, box.clientWidth), height: 190, legend: { show: false }, padding: [10, 14, 0, 0],
    series, bands,
    scales: { x: { time: false }, y: { range: limits } },
    axes: [
      axis({ size: 26, gap: 4, space: 60, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6] }),
      axis({ size: 50, gap: 6, space: 34, values: (_, splits) => splits.map(short) }),
    ],
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 }, sync: chart.x_label === "iteration" ? { key: "iterations", setSeries: false } : undefined },
    hooks: { setCursor: [(u) => read(u.cursor.idx)] },
  }, table, box);
  keys.forEach((key, owner) => key.addEventListener("click", () => {
    const on = key.getAttribute("aria-pressed") !== "true";
    key.setAttribute("aria-pressed", String(on));
    series.forEach((s, i) => { if (s.owner === owner) plot.setSeries(i, { show: on }); });
  }));
  box.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    const from = plot.cursor.idx ?? (move < 0 ? chart.x.length : -1);
    const index = Math.min(chart.x.length - 1, Math.max(0, from + move));
    plot.setCursor({ left: plot.valToPos(chart.x[index], "x"), top: 10 });
  });
  new ResizeObserver(() => {
    const width = Math.max(200, box.clientWidth);
    if (width !== plot.width) plot.setSize({ width, height: 190 });
  }).observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plot.redraw());
}

// From 0 when that costs little, with room above; a flat line stands in the middle.
function limits(_, low, high) {
  if (low == null || high == null) return [0, 1];
  if (low === high) return low === 0 ? [-0.05, 1] : [Math.min(0, low * 1.5), Math.max(0, low * 1.5)];
  const room = (high - low) * 0.06;
  const from = low >= 0 && low < 0.6 * high ? 0 : low - room;
  return [from, high <= 1 && high > 0.9 && from >= 0 ? Math.max(1.02, high + room / 2) : high + room];
}

// The same as a table, made when it is asked for.
function numbers(chart) {
  const details = el("details", { class: "numbers" }, el("summary", {}, "numbers"));
  details.addEventListener("toggle", () => {
    if (!details.open || details.childElementCount > 1) return;
    const n = chart.x.length, picked = [...new Set(Array.from({ length: Math.min(n, 12) }, (_, i, m = Math.min(n, 12)) => m < 2 ? 0 : Math.round((i * (n - 1)) / (m - 1))))];
    details.append(el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Numbers: ${chart.title}` }, el("table", {},
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, chart.x_label), chart.series.map((s) => el("th", { scope: "col" }, s.label)))),
      el("tbody", {}, picked.map((i) => el("tr", {}, el("th", { scope: "row" }, chart.x[i]), chart.series.map((s) => el("td", { class: "number" }, number(s.y[i])))))))));
  });
  return details;
}

function curves() {
  if (!data.sections.length) return section("curves", "Curves", "Nothing was recorded yet.");
  return section("curves", "Curves", "Point at a curve, or reach it with Tab and use the arrow keys; names switch lines off and on.",
    data.sections.map(({ section: title, charts }) => el("div", { class: "chapter" }, el("h3", {}, title),
      el("div", { class: charts.length % 3 === 1 && charts.length % 2 === 0 ? "grid wide" : "grid" }, charts.map(chartCard)))));
}
