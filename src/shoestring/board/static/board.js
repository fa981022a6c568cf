"use strict";
// The page keeps what the server says and what is chosen; every text enters it as text, never as markup.

const COLOURS = ["#1d4e89", "#c8553d", "#3a7d44", "#8a4fa3", "#d39a1f", "#2a9d8f", "#d6336c", "#7a5c3e", "#5b6ee1", "#6f8f1f",
  "#a33b3b", "#3d7ea6"];
const BUCKETS = 500;
const ORDER = new Intl.Collator(undefined, { numeric: true }); // made once: localeCompare makes one for each pair
const $ = (id) => document.getElementById(id);
const rows = new Map();
const chosen = new Map(); // name -> colour
let opened = null, sorting = { key: null, up: true }, zoom = null, plot = null, busy = false, again = false, first = true;

function element(tag, text = "", more = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(more)) made.setAttribute(name, value);
  return made;
}

async function get(path, query = []) {
  const answer = await fetch(path + (query.length ? "?" + new URLSearchParams(query) : ""));
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

// numbers for people

function seconds(value) {
  if (value === null || value === undefined) return "";
  if (value < 60) return `${value < 10 ? value.toFixed(1) : Math.round(value)}s`;
  const parts = [[Math.floor(value / 86400), "d"], [Math.floor(value / 3600) % 24, "h"], [Math.floor(value / 60) % 60, "m"],
    [Math.floor(value) % 60, "s"]].filter(([n]) => n);
  return parts.slice(0, 2).map(([n, unit]) => n + unit).join(" ");
}

function short(value) {
  if (value === null || value === undefined) return "";
  for (const [size, unit] of [[1e24, "Y"], [1e21, "Z"], [1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (Math.abs(value) >= size) return `${+(value / size).toPrecision(3)}${unit}`;
  return `${+value.toPrecision(4)}`;
}

const progress = (row) => (row.total ? Math.min(1, row.step / row.total) : null);
const off = (row) => (row.planned_seconds && row.expected_seconds ? row.expected_seconds / row.planned_seconds - 1 : null);
const percent = (value) => (value === null ? "" : `${value < 0 ? "−" : "+"}${Math.abs(100 * value).toFixed(0)} %`);
const verdict = (row) => row.problems.concat((row.verdicts || []).filter((v) => v.kind !== "noise").map((v) => v.text)).join(" · ");
const KEYS = { progress, off, verdict, forecast: (row) => row.forecast && row.forecast.loss };

// the list

function shown() {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [...rows.values()].filter((row) => {
    const text = `${row.name} ${row.state} ${row.family} ${verdict(row)}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const key = sorting.key && (KEYS[sorting.key] || ((row) => row[sorting.key]));
  if (!key) return found.sort((a, b) => (a.state === "running" ? 0 : 1) - (b.state === "running" ? 0 : 1) || ORDER.compare(a.name, b.name));
  return found.sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (x === null || x === undefined || y === null || y === undefined) return (x === null || x === undefined) - (y === null || y === undefined);
    const order = typeof x === "number" ? x - y : ORDER.compare(String(x), String(y));
    return sorting.up ? order : -order;
  });
}

function drawList() {
  const body = $("runs").tBodies[0], made = document.createDocumentFragment();
  for (const row of shown()) {
    const line = element("tr", "", { "data-run": row.name });
    if (row.name === opened) line.className = "open";
    const box = element("input", "", { type: "checkbox", "aria-label": `show ${row.name}` });
    box.checked = chosen.has(row.name);
    if (box.checked) box.style.setProperty("--dot", chosen.get(row.name));
    box.addEventListener("click", (event) => { event.stopPropagation(); choose(row.name, box.checked); });
    const cells = Array.from({ length: 9 }, () => element("td"));
    cells[0].append(box);
    cells[1].append(element("span", row.name, { class: "name" }));
    cells[2].append(element("span", row.state, { class: row.state }));
    const done = progress(row);
    if (done !== null) {
      const bar = element("progress", "", { max: 1, value: done, title: `${row.unit} ${row.step} of ${row.total}` });
      cells[3].append(bar, ` ${(100 * done).toFixed(0)} %`);
    }
    cells[4].textContent = row.state === "running" ? seconds(row.seconds_left) : "";
    const planned = row.planned_seconds ? `, ${seconds(row.planned_seconds)}` : "";
    cells[5].textContent = row.seconds ? `${seconds(row.seconds)}${planned} ${off(row) === null ? "" : `(${percent(off(row))})`}` : planned.slice(2);
    cells[5].title = "time so far, planned time, and by how much the whole run differs from it";
    cells[6].textContent = row.loss === null ? "" : row.loss.toFixed(3) + (row.loss_error ? ` ± ${row.loss_error.toFixed(3)}` : "");
    if (row.forecast) {
      cells[7].textContent = row.forecast.loss.toFixed(3);
      cells[7].title = `${row.forecast.low.toFixed(3)} to ${row.forecast.high.toFixed(3)}, 90 %, after ${row.unit} ${row.forecast.step}`
        + (row.forecast.runs ? `, by its curve and ${row.forecast.runs} earlier run${row.forecast.runs > 1 ? "s" : ""} on the same data` : "");
    }
    const words = element("div", verdict(row), { title: verdict(row) });
    if (row.problems.length) words.className = "problem";
    cells[8].append(words);
    line.append(...cells);
    line.addEventListener("click", () => open(row.name));
    made.append(line);
  }
  body.replaceChildren(made);
  const states = [...rows.values()].reduce((n, row) => n.set(row.state, (n.get(row.state) || 0) + 1), new Map());
  $("counts").textContent = [...states].map(([state, n]) => `${n} ${state}`).join(", ");
  $("compare").disabled = chosen.size !== 2;
}

function mark(name) {
  const used = new Set(chosen.values());
  chosen.set(name, COLOURS.find((colour) => !used.has(colour)) || COLOURS[chosen.size % COLOURS.length]);
}

function choose(name, on) {
  if (on && !chosen.has(name)) mark(name);
  else if (!on) chosen.delete(name);
  drawList();
  drawCurves();
}

function chooseAll(names) {
  chosen.clear();
  for (const name of names) if (rows.has(name)) chosen.set(name, COLOURS[chosen.size % COLOURS.length]);
  drawList();
  drawCurves();
}

// the curves

async function drawCurves() {
  if (busy) { again = true; return; } // one question at a time, and the last one always
  busy = true;
  try { await drawCurvesNow(); } finally { busy = false; }
  if (again) { again = false; drawCurves(); }
}

async function drawCurvesNow() {
  const names = [...chosen.keys()].filter((name) => rows.has(name));
  $("empty").hidden = names.length > 0;
  $("reset").disabled = zoom === null;
  if (!names.length) {
    if (plot) plot.destroy();
    plot = null;
    return;
  }
  const by = $("by").value, query = [["by", by], ["log", $("logx").checked ? "1" : "0"], ["smooth", $("smooth").value],
    ["buckets", names.length > 40 ? BUCKETS / 2 : BUCKETS], ...names.map((name) => ["run", name])];
  if (zoom) query.push(["low", zoom[0]], ["high", zoom[1]]);
  let found;
  try { found = await get("/api/curves", query); } catch (error) { return; } // a run was removed meanwhile
  const data = [found.x], series = [{ label: $("by").selectedOptions[0].textContent, value: (_, v) => short(v) }];
  for (const run of found.runs) {
    const colour = chosen.get(run.name) || "#888";
    if ($("training").checked) {
      data.push(run.training);
      series.push({ label: `${run.name}, training`, stroke: colour + ($("heldout").checked ? "88" : ""), width: 1, spanGaps: true,
        points: { show: false }, value: (_, v) => (v === null ? "" : v.toFixed(3)) });
    }
    if ($("heldout").checked) {
      data.push(run.heldout);
      series.push({ label: `${run.name}, held out`, stroke: colour, width: 2, spanGaps: true, points: { show: true, size: 5, fill: colour },
        value: (_, v) => (v === null ? "" : v.toFixed(3)) });
    }
  }
  const logx = $("logx").checked, logy = $("logy").checked;
  const kind = JSON.stringify([names.map((name) => chosen.get(name)), names, by, logx, logy, $("training").checked, $("heldout").checked]);
  if (plot && plot.kind === kind) {
    plot.ends = zoom;
    plot.setData(data);
    return;
  }
  if (plot) plot.destroy();
  plot = new uPlot(options(series, by, logx, logy), data, $("plot"));
  plot.kind = kind;
  plot.ends = zoom;
}

function options(series, by, logx, logy) {
  const style = getComputedStyle(document.documentElement), soft = style.getPropertyValue("--soft"), line = style.getPropertyValue("--line");
  const axis = { stroke: soft, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
  const title = { tokens: "positions of training", seconds: "seconds, all sessions", flops: "training FLOPs", step: "steps" }[by];
  const shortened = (_, values) => values.map((v) => (v === null ? "" : by === "seconds" ? seconds(v) : short(v)));
  return {
    width: $("plot").clientWidth, height: 380, series, legend: { show: series.length < 26 },
    scales: { x: { time: false, distr: logx ? 3 : 1 }, y: { distr: logy ? 3 : 1 } },
    axes: [{ ...axis, label: title, values: shortened }, { ...axis, label: "loss, nats", size: 62,
      values: (_, values) => values.map((v) => (v === null ? "" : `${+v.toPrecision(4)}`)) }],
    cursor: { drag: { x: true, y: false, setScale: false }, bind: { dblclick: () => () => { setZoom(null); } } },
    hooks: {
      setSelect: [(u) => {
        if (u.select.width > 4) setZoom([u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")]);
        u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      }],
    },
  };
}

function setZoom(ends) {
  zoom = ends;
  drawCurves();
}

// one run, or two recipes

function table(cells, name = "") {
  const made = element("table", "", name ? { class: name } : {});
  for (const row of cells) {
    const line = element("tr");
    for (const cell of row) line.append(cell instanceof Node ? cell : element("td", cell ?? ""));
    made.append(line);
  }
  return made;
}

function heading(...cells) {
  return cells.map((cell) => element("th", cell));
}

function part(title, ...content) {
  const made = element("div");
  made.append(element("h3", title), ...content);
  return made;
}

async function open(name) {
  opened = name;
  drawList();
  await drawDetail();
}

async function drawDetail() {
  const name = opened;
  let found;
  if (name === null) return;
  try { found = await get("/api/run", [["run", name]]); } catch (error) { return close(); }
  if (name !== opened) return;
  const box = $("detail"), row = found.row, columns = element("div", "", { class: "columns" });
  const button = element("button", "close", { id: "close" });
  button.addEventListener("click", close);
  const done = row.total ? `, ${row.unit} ${row.step.toLocaleString("en")} of ${row.total.toLocaleString("en")}` : "";
  const speed = row.rate ? `, ${short(row.rate)} positions/s` : "";
  const content = [button, element("h2", row.name), element("div", `${row.state}${done}, ${seconds(row.seconds)}${speed}`)];
  for (const problem of new Set([...found.problems, ...row.problems])) content.push(element("p", problem, { class: "problem" }));
  for (const said of row.verdicts || []) content.push(element("p", said.text));
  if (found.samples.length) {
    content.push(part("What it writes", ...found.samples.map((texts) => table(texts.map((text) => {
      const cell = element("td"), begins = text.prompt && text.text.startsWith(text.prompt);
      if (begins) cell.append(element("b", text.prompt));
      cell.append(begins ? text.text.slice(text.prompt.length) : text.text);
      return [`${row.unit === "update" ? "epoch" : row.unit} ${text.step}`, text.loss === null ? "" : text.loss.toFixed(2), cell];
    }), "samples"))));
  }
  if (found.against.length) columns.append(part("Plan against actual", table([heading("", "planned", "actual", "difference"), ...found.against])));
  const baselines = Object.entries(found.baselines).map(([known, loss]) => [known, loss.toFixed(3)]);
  if (baselines.length) columns.append(part("Baselines, nats", table(baselines)));
  if (found.timeline.length) columns.append(part("Where the time went", table(found.timeline)));
  if (found.machine) {
    const m = found.machine, versions = Object.entries(m.versions).map(([what, which]) => `${what} ${which}`).join(", ");
    columns.append(part("Machine", table([["device", m.device_name], ["memory", m.memory_bytes ? `${short(m.memory_bytes)}B` : "unknown"],
      ["threads", String(m.threads)], ["system", `${m.system}, Python ${m.python}`], ["versions", versions]])));
  }
  content.push(columns);
  for (const [title, inner] of [["Plan, with its reasons", found.plan.length ? table(found.plan) : null], ["Recipe", element("pre", found.recipe)]]) {
    if (!inner) continue;
    const folded = element("details", "", { "data-fold": title });
    folded.open = Boolean(box.querySelector(`[data-fold="${title}"][open]`));
    folded.append(element("summary", title), inner);
    content.push(folded);
  }
  box.replaceChildren(...content);
  box.hidden = false;
}

function close() {
  opened = null;
  $("detail").hidden = true;
  drawList();
}

async function compare() {
  const names = [...chosen.keys()], found = await get("/api/compare", names.map((name) => ["run", name]));
  opened = null;
  const button = element("button", "close", { id: "close" });
  button.addEventListener("click", close);
  const same = element("p", "The two recipes are the same.");
  const body = found.fields.length ? table([heading("field", ...found.names), ...found.fields], "fields") : same;
  $("detail").replaceChildren(button, element("h2", "Two recipes, field by field"), body);
  $("detail").hidden = false;
}

// live

function take(found) {
  for (const row of found.runs) rows.set(row.name, row);
  for (const name of found.gone || []) { rows.delete(name); chosen.delete(name); }
  drawList();
  const names = new Set([...found.runs.map((row) => row.name), ...(found.gone || [])]);
  if ([...names].some((name) => chosen.has(name)) || (found.gone || []).length) drawCurves();
  if (opened !== null && names.has(opened)) drawDetail();
  drawSweeps();
}

async function begin() {
  const found = await get("/api/runs");
  $("folder").textContent = found.folder;
  rows.clear();
  for (const row of found.runs) rows.set(row.name, row);
  if (first) for (const row of shown().slice(0, 6)) mark(row.name);
  first = false;
  drawList();
  await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn))); // the list is on the screen first
  drawCurves();
  drawSweeps();
}

function listen() {
  const events = new EventSource("/api/events");
  events.addEventListener("runs", (event) => take(JSON.parse(event.data)));
  events.onopen = () => { $("link").textContent = "live"; $("link").className = "live"; begin(); };
  events.onerror = () => { $("link").textContent = "not connected; trying again"; $("link").className = "lost"; };
}

async function drawMachine() {
  try {
    const m = await get("/api/machine"), bytes = (used, all) => (all ? `${short(used)}B of ${short(all)}B` : "");
    const gpus = m.gpus.map((gpu) => [gpu.name, bytes(gpu.used_bytes, gpu.memory_bytes), gpu.utilisation === null ? "" : `${Math.round(100 * gpu.utilisation)} %`,
      gpu.celsius === null ? "" : `${gpu.celsius} °C`].filter(Boolean).join(", "));
    $("machine").textContent = [`${m.host}: load ${m.load.toFixed(1)} of ${m.cores} cores, memory ${bytes(m.used_bytes, m.memory_bytes)}`, ...gpus].join(" · ");
  } catch (error) { $("machine").textContent = ""; }
}

$("filter").addEventListener("input", drawList);
$("all").addEventListener("click", () => chooseAll([...chosen.keys(), ...shown().map((row) => row.name)]));
$("none").addEventListener("click", () => chooseAll([]));
$("compare").addEventListener("click", compare);
$("reset").addEventListener("click", () => setZoom(null));
for (const id of ["by", "logx"]) $(id).addEventListener("change", () => setZoom(null));
for (const id of ["logy", "smooth", "training", "heldout"]) $(id).addEventListener("input", drawCurves);
for (const head of document.querySelectorAll("th[data-key]")) head.addEventListener("click", () => {
  sorting = { key: head.dataset.key, up: sorting.key === head.dataset.key ? !sorting.up : true };
  for (const other of document.querySelectorAll("th[data-key]")) other.className = "";
  head.className = sorting.up ? "up" : "down";
  drawList();
});
addEventListener("resize", () => { if (plot) plot.setSize({ width: $("plot").clientWidth, height: 380 }); });
setInterval(drawMachine, 3000);
drawMachine();
listen();
