// Builds report.html from the JSON in #data, with tools.js and curves.js, which stand before it in the page.

const data = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page");

// -- head -----------------------------------------------------------------------------------------------------------

function head() {
  const tone = data.complete ? "good" : "warn";
  const facts = [
    ...data.facts,
    ...(data.created ? [["begun", data.created.slice(0, 16).replace("T", " ") + " UTC"]] : []),
  ];
  return el(
    "header",
    {},
    el("p", { class: "brand" }, "Oncurve · run report"),
    el("h1", {}, data.name, el("span", { class: `badge ${tone}` }, data.complete ? "finished" : "not finished")),
    el("p", { class: "progress" }, data.progress),
    el("dl", { class: "facts" }, facts.map(([label, value]) => el("div", {}, el("dt", {}, label), el("dd", {}, value)))),
    !data.complete &&
      el("p", { class: "banner", role: "status" }, "This run is not finished: what follows is how far it came. ",
        "The same command goes on from its last checkpoint."),
  );
}

function navigation(items) {
  return el("nav", { "aria-label": "Parts of this report" }, items.map(([id, label]) => el("a", { href: `#${id}` }, label)));
}

// -- result ---------------------------------------------------------------------------------------------------------

const inUnit = (e) => !e || [e.value, e.low, e.high].every((v) => v == null || (v >= 0 && v <= 1));
const interval = (e) => (e && e.low != null && e.high != null ? `${number(e.low)} to ${number(e.high)}` : "");

function bar(estimate, when) {
  const known = estimate && estimate.value != null;
  const low = known ? estimate.low ?? estimate.value : 0, high = known ? estimate.high ?? estimate.value : 0;
  return el("span", { class: `bar ${when}`, "aria-hidden": "true" },
    known && el("span", { class: "reach", style: { left: percent(low), width: percent(high - low) } }),
    known && el("span", { class: "dot", style: { left: percent(estimate.value) } }));
}

function card(row) {
  const line = (estimate, label, when) => el("div", { class: "line" },
    el("span", { class: "when" }, label),
    el("span", { class: `big ${when}` }, estimate ? number(estimate.value) : "not yet"),
    inUnit(estimate) ? bar(estimate, when) : el("span", {}),
    el("span", { class: "interval" }, interval(estimate)));
  const n = row.before && row.before.n;
  return el("article", { class: "card estimate" },
    el("h3", {}, `Held-out ${row.name}`, el("span", { class: "kind" }, row.kind)),
    line(row.before, row.labels[0], "before"),
    row.after ? line(row.after, row.labels[1], "after") : el("p", { class: "note" }, "Not measured again yet."),
    el("p", { class: "note" }, `${n ? plural(n, "prompt") + " it never trained on. " : ""}Bars: 95% intervals on 0 to 1.`));
}

function estimateTable(rows) {
  const ends = [0, 1].map((i) => new Set(rows.map((row) => row.labels[i]).filter(Boolean)));
  const [first, last] = ends.map((names, i) => (names.size === 1 ? [...names][0] : ["before", "after"][i]));
  const cells = (estimate) => [
    el("td", { class: "number" }, estimate ? number(estimate.value) : "–"),
    el("td", { class: "interval" }, interval(estimate)),
  ];
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "All held-out measures" },
    el("table", {},
      el("thead", {}, el("tr", {},
        el("th", { scope: "col" }, "measure"), el("th", { scope: "col" }, "decoding"),
        el("th", { scope: "col", colspan: "2" }, `${first} (95%)`),
        el("th", { scope: "col", colspan: "2" }, `${last} (95%)`),
        el("th", { scope: "col" }, "change"), el("th", { scope: "col" }, "prompts"))),
      el("tbody", {}, rows.map((row) => {
        const change = row.before && row.after ? row.after.value - row.before.value : null;
        return el("tr", { class: row.main ? "main" : null },
          el("th", { scope: "row" }, row.name), el("td", {}, row.kind),
          cells(row.before), cells(row.after),
          el("td", { class: "number" }, change == null ? "–" : signed(change, 3)),
          el("td", { class: "number" }, (row.after || row.before || {}).n ?? "–"));
      }))));
}

const OUTCOMES = {
  mended: ["wrong → right", "good"], right: ["right both times", "calm"], wrong: ["wrong both times", "dull"],
  lost: ["right → wrong", "bad"], rose: ["rose", "good"], same: ["unchanged", "dull"], fell: ["fell", "bad"],
};
const OUTCOME_ORDER = ["mended", "rose", "right", "same", "wrong", "lost", "fell"];

function outcomes() {
  const counts = data.held_out && data.held_out.counts;
  const kinds = OUTCOME_ORDER.filter((kind) => counts && counts[kind]);
  if (!kinds.length) return null;
  const total = kinds.reduce((sum, kind) => sum + counts[kind], 0);
  return el("article", { class: "card" },
    el("h3", {}, "The same prompts, before and after", el("span", { class: "kind" }, `greedy, by ${data.held_out.measure || "reward"}`)),
    el("div", { class: "strip", "aria-hidden": "true" },
      kinds.map((kind) => el("span", { class: OUTCOMES[kind][1], style: { flexGrow: counts[kind] } }))),
    el("ul", { class: "keys" }, kinds.map((kind) => el("li", {},
      el("i", { class: OUTCOMES[kind][1], "aria-hidden": "true" }),
      el("b", {}, counts[kind]), ` ${OUTCOMES[kind][0]} (${Math.round((100 * counts[kind]) / total)}%)`))));
}

function result() {
  const rows = data.estimates;
  const main = rows.filter((row) => row.main);
  return section("result", "Did it learn?", null,
    !rows.length && el("p", { class: "lead" }, "No held-out prompts were evaluated in this run; the curves below are all there is."),
    el("div", { class: "cards" }, main.map((row) => card(row)), outcomes()),
    data.findings.length > 0 && el("ul", { class: "findings" },
      data.findings.map((finding) => el("li", { class: `tone-${finding.tone}` }, finding.text))),
    rows.length > main.length && estimateTable(rows));
}

// -- completions ----------------------------------------------------------------------------------------------------

function parts(completion) {
  return completion.parts.map(([name, value]) => el("span", { class: "chip" + (value === 1 ? " full" : value === 0 ? " none" : "") },
    `${name} `, el("b", {}, value == null ? "unscored" : number(value, value % 1 ? 2 : 0))));
}

function samples({ samples: all }) {
  const listed = all.slice(0, 8).join(", ") + (all.length > 8 ? ", …" : "");
  return all.length > 1 ? `${all.length} alike: samples ${listed}` : `sample ${listed}`;
}

function marks(completion, withReward) {
  return el("p", { class: "marks" },
    withReward && el("span", { class: "chip reward" }, "reward ", el("b", {}, completion.reward == null ? "unscored" : number(completion.reward, 2))),
    parts(completion), el("span", { class: "chip plain" }, plural(completion.tokens, "token")),
    withReward && el("span", { class: completion.samples.length > 1 ? "chip" : "chip plain" }, samples(completion)),
    completion.truncated && el("span", { class: "chip bad" }, "ran into the token limit"),
    typeof completion.text !== "string" && el("span", { class: "chip warn" }, "shown shortened"));
}

const text = (completion, label) => el("pre", { class: "text", tabindex: "0", role: "region", "aria-label": label }, shown(completion.text));

function side(label, { greedy, sampled }, when) {
  const right = sampled.filter((c) => c.reward != null).map((c) => c.reward);
  const mean = right.length ? right.reduce((a, b) => a + b, 0) / right.length : null;
  return el("div", { class: `side ${when}` }, el("h4", {}, label),
    greedy.map((c) => [marks(c, false), text(c, `Greedy completion, ${label}`)]),
    !greedy.length && el("p", { class: "note" }, "no completion kept"),
    sampled.length > 0 && el("details", {},
      el("summary", {}, `${plural(sampled.length, "sampled completion")}${mean == null ? "" : `, mean reward ${number(mean, 2)}`}`),
      sampled.map((c) => [marks(c, true), text(c, `Sampled completion, ${samples(c)}, ${label}`)])));
}

function heldOut() {
  const found = data.held_out;
  if (!found || !found.prompts.length) return null;
  const lead = found.labels.length > 1
    ? "Greedy completions of the same prompts before and after, some of every outcome, picked evenly and not for their looks."
    : "Greedy completions before training; nothing was evaluated after it yet.";
  return section("held-out", "Held-out prompts", lead, found.prompts.map((example) =>
    el("article", { class: "card example" },
      el("div", { class: "asked" },
        el("pre", { class: "prompt" }, shown(example.prompt)),
        el("p", { class: "marks" }, example.outcome && el("span", { class: `outcome ${OUTCOMES[example.outcome][1]}` }, OUTCOMES[example.outcome][0]),
          el("span", { class: "chip plain" }, `prompt ${example.id}`))),
      el("div", { class: "sides" }, example.sides.map((s, i) => side(found.labels[i], s, i ? "after" : "before"))))));
}

function advantage(completion, largest) {
  const value = completion.advantage ?? 0, share = largest ? Math.abs(value) / largest / 2 : 0;
  return el("div", { class: "advantage" },
    el("b", { class: value > 0 ? "up" : value < 0 ? "down" : "" }, completion.advantage == null ? "–" : signed(value)),
    el("span", { class: "scale", "aria-hidden": "true" },
      el("span", { class: value < 0 ? "down" : "up", style: { left: percent(value < 0 ? 0.5 - share : 0.5), width: percent(share) } })));
}

function group(found) {
  const idle = !found.largest;
  return el("article", { class: "card group" },
    el("div", { class: "asked" },
      el("pre", { class: "prompt" }, shown(found.prompt)),
      el("p", { class: "marks" },
        el("span", { class: "chip plain" }, `mean reward ${number(found.mean, 2)}`), el("span", { class: "chip plain" }, `spread ${number(found.spread, 2)}`),
        idle && el("span", { class: "outcome dull" }, "all equal: nothing to learn"), el("span", { class: "chip plain" }, `prompt ${found.id}`))),
    el("ol", { class: "rows" }, found.completions.map((c) => el("li", {},
      advantage(c, found.largest), el("div", {}, marks(c, true), text(c, `Completion, ${samples(c)}, advantage ${c.advantage ?? "unknown"}`))))),
    found.hidden > 0 && el("p", { class: "note" }, `${plural(found.hidden, "completion")} between these ${found.hidden === 1 ? "is" : "are"} not shown.`));
}

function training() {
  if (!data.training.length) return null;
  return section("training", "Training groups",
    "What GRPO learned from: each completion is compared with its own group. A positive advantage makes it more likely, a negative one less.",
    data.training.map((found) => el("div", { class: "chapter" },
      el("h3", {}, `Iteration ${found.iteration}`, el("span", { class: "kind" }, `${found.teaching} of ${plural(found.groups, "group")} had any spread`)),
      el("div", { class: "groups" }, found.shown.map(group)))));
}

// -- recipe ---------------------------------------------------------------------------------------------------------

function recipe() {
  if (!data.recipe.length && !data.config) return null;
  return section("recipe", "Recipe", null,
    el("dl", { class: "recipe" }, data.recipe.map(([label, value]) => el("div", {}, el("dt", {}, label), el("dd", {}, value)))),
    data.config && el("details", {}, el("summary", {}, "the whole recipe (config.toml)"),
      el("pre", { class: "text config", tabindex: "0", role: "region", "aria-label": "config.toml" }, shown(data.config))));
}

const bodyParts = [["result", "Result", result()], ["curves", "Curves", curves()], ["held-out", "Held-out prompts", heldOut()],
  ["training", "Training groups", training()], ["recipe", "Recipe", recipe()]].filter((part) => part[2]);
page.replaceChildren(head(), navigation(bodyParts), el("main", {}, bodyParts.map((part) => part[2])),
  el("footer", {}, `Written by Oncurve ${data.oncurve || ""}. Curves drawn with uPlot (MIT).`));
plots.forEach((plot) => plot.draw());
