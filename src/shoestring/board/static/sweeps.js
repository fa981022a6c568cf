"use strict";
// Sweeps: their list, and of one of them a heat map over two fields, parallel coordinates, and its settings best first.

const VIRIDIS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const SHOWN_SETTINGS = 500;
const sweep = { opened: null, by: "loss", x: null, y: null, found: null, busy: false, again: false };

function drawing(tag, more = {}, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(more)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

function titled(made, text) {
  made.append(drawing("title", {}, text));
  return made;
}

// share: 0 is the best, which is bright
function colour(share) {
  const at = (1 - Math.min(1, Math.max(0, share))) * (VIRIDIS.length - 1), low = Math.min(VIRIDIS.length - 2, Math.floor(at));
  return `rgb(${VIRIDIS[low].map((c, i) => Math.round(c + (at - low) * (VIRIDIS[low + 1][i] - c))).join(",")})`;
}

function ordered(values) {
  const unique = [...new Set(values)];
  return unique.every((value) => typeof value === "number") ? unique.sort((a, b) => a - b) : unique;
}

const result = (value) => (value === null ? "" : sweep.by === "seconds" ? seconds(value) : Math.abs(value) >= 1e4 ? short(value) : value.toPrecision(4));
const states = (counts) => Object.entries(counts).map(([state, count]) => `${count} ${state}`).join(", ");
const said = (setting) => Object.entries(setting.values).map(([field, value]) => `${field} = ${value}`).join(", ");

// between the best (0) and the worst (1) of what is known
function badness(known, higher) {
  const values = known.map((setting) => setting.mean), low = Math.min(...values), high = Math.max(...values);
  return (value) => (high > low ? (higher ? high - value : value - low) / (high - low) : 0);
}

async function drawSweeps() {
  if (sweep.busy) { sweep.again = true; return; } // one question at a time, and the last one always
  sweep.busy = true;
  try {
    const list = (await get("/api/sweeps")).sweeps;
    drawSweepList(list);
    if (sweep.opened !== null) sweep.found = await get("/api/sweep", [["sweep", sweep.opened], ["by", sweep.by]]);
    drawSweep();
  } catch (error) { closeSweep(); } finally { sweep.busy = false; }
  if (sweep.again) { sweep.again = false; drawSweeps(); }
}

function drawSweepList(list) {
  $("sweeps").hidden = !list.length;
  const lines = list.map((each) => {
    const name = element("td");
    name.append(element("span", each.name, { class: "name" }));
    const best = each.best && each.best.mean !== null ? `${each.best.mean.toFixed(3)}, with ${said(each.best)}` : "";
    const problem = element("td", each.problem || best, each.problem ? { class: "problem" } : {});
    return [each.name, [name, element("td", `${each.runs}`), element("td", states(each.states)), element("td", each.fields.join(", ")), problem]];
  });
  const made = table([heading("sweep", "runs", "", "fields", "lowest held-out loss")]);
  for (const [name, cells] of lines) {
    const line = element("tr", "", { "data-sweep": name, ...(name === sweep.opened ? { class: "open" } : {}) });
    line.append(...cells);
    line.addEventListener("click", () => { sweep.opened = name; sweep.x = sweep.y = null; drawSweeps(); });
    made.append(line);
  }
  $("sweeplist").replaceChildren(made);
}

function closeSweep() {
  sweep.opened = sweep.found = null;
  drawSweep();
}

function select(id, label, choices, value, change) {
  const made = element("select", "", { id }), around = element("label", `${label} `);
  for (const [key, text] of choices) made.append(element("option", text, { value: key }));
  made.value = value;
  made.addEventListener("change", () => change(made.value));
  around.append(made);
  return around;
}

function drawSweep() {
  const box = $("sweep"), found = sweep.found;
  box.hidden = found === null;
  if (found === null) { box.replaceChildren(); return; }
  const known = found.settings.filter((setting) => setting.mean !== null);
  const fields = found.fields.filter((field) => new Set(found.settings.map((setting) => setting.values[field])).size > 1);
  if (!fields.includes(sweep.x)) sweep.x = fields[0];
  if (!fields.includes(sweep.y) || sweep.y === sweep.x) sweep.y = fields.find((field) => field !== sweep.x);
  const bar = element("div", "", { class: "bar" }), button = element("button", "close", { id: "closesweep" });
  const curves = element("button", "show its curves", { id: "sweepcurves" });
  button.addEventListener("click", () => { closeSweep(); drawSweeps(); });
  curves.addEventListener("click", () => chooseAll(found.settings.flatMap((setting) => setting.shown)));
  bar.append(element("h2", found.name), select("sweepby", "by", [["loss", "held-out loss"], ["forecast", "forecast loss"], ["seconds", "seconds"],
    ["tokens_per_second", "positions/s"]], sweep.by, (by) => { sweep.by = by; drawSweeps(); }));
  const content = [bar];
  if (fields.length > 1) {
    const names = fields.map((field) => [field, field]);
    bar.append(select("sweepx", "across", names, sweep.x, (field) => { sweep.x = field; drawSweep(); }),
      select("sweepy", "down", names, sweep.y, (field) => { sweep.y = field; drawSweep(); }));
    const figures = element("div", "", { class: "figures" });
    if (known.length) figures.append(part(fields.length > 2 ? "Best over the other fields" : "Both fields", heatMap(known, found)));
    if (known.length > 1) figures.append(part("All fields", parallel(known, fields, found)));
    content.push(figures);
  }
  bar.append(curves, button);
  content.push(settingTable(found));
  box.replaceChildren(...content);
}

function heatMap(known, found) {
  const [xs, ys] = [sweep.x, sweep.y].map((field) => ordered(found.settings.map((setting) => setting.values[field])));
  const left = 20 + 7 * Math.max(4, ...ys.map((y) => String(y).length)), wide = Math.max(58, Math.min(110, 560 / xs.length)), tall = 34, top = 8;
  const svg = drawing("svg", { id: "heat", width: left + wide * xs.length + 8, height: top + tall * ys.length + 44 });
  const cells = new Map();
  for (const setting of [...known].reverse()) cells.set([setting.values[sweep.x], setting.values[sweep.y]].join(), setting); // the best one comes last
  const bad = badness([...cells.values()], found.higher);
  for (const [key, setting] of cells) {
    const at = [xs.indexOf(setting.values[sweep.x]), ys.length - 1 - ys.indexOf(setting.values[sweep.y])];
    const share = bad(setting.mean), x = left + wide * at[0], y = top + tall * at[1];
    const cell = drawing("rect", { x, y, width: wide - 1, height: tall - 1, fill: colour(share), "data-cell": key });
    cell.addEventListener("click", () => { if (setting.shown.length) open(setting.shown[0]); });
    svg.append(titled(cell, `${said(setting)}: ${result(setting.mean)}`),
      drawing("text", { x: x + wide / 2, y: y + tall / 2 + 4, "text-anchor": "middle", fill: share < 0.55 ? "#111" : "#fff", "pointer-events": "none" }, result(setting.mean)));
  }
  xs.forEach((value, i) => svg.append(drawing("text", { x: left + wide * (i + 0.5), y: top + tall * ys.length + 16, "text-anchor": "middle" }, value)));
  ys.forEach((value, i) => svg.append(drawing("text", { x: left - 6, y: top + tall * (ys.length - 0.5 - i) + 4, "text-anchor": "end" }, value)));
  svg.append(drawing("text", { x: left + (wide * xs.length) / 2, y: top + tall * ys.length + 36, "text-anchor": "middle", class: "soft" }, sweep.x),
    drawing("text", { x: 12, y: top + (tall * ys.length) / 2, "text-anchor": "middle", class: "soft", transform: `rotate(-90 12 ${top + (tall * ys.length) / 2})` }, sweep.y));
  return svg;
}

function parallel(known, fields, found) {
  const step = Math.max(110, Math.min(150, 640 / fields.length)), high = 220, top = 26, left = 14;
  const svg = drawing("svg", { id: "parallel", width: left + step * fields.length + 90, height: top + high + 20 });
  const values = known.map((setting) => setting.mean), low = Math.min(...values), most = Math.max(...values), bad = badness(known, found.higher);
  const places = new Map(fields.map((field) => [field, ordered(known.map((setting) => setting.values[field]))]));
  const height = (field, value) => {
    const at = places.get(field);
    return top + high * (1 - (at.length > 1 ? at.indexOf(value) / (at.length - 1) : 0.5));
  };
  const last = (value) => top + high * (1 - (most > low ? (value - low) / (most - low) : 0.5));
  for (const setting of [...known].reverse()) { // the best one on top
    const points = fields.map((field, i) => [left + step * i, height(field, setting.values[field])]);
    points.push([left + step * fields.length, last(setting.mean)]);
    const line = drawing("polyline", { points: points.map((point) => point.join()).join(" "), stroke: colour(bad(setting.mean)), class: "setting" });
    line.addEventListener("click", () => { if (setting.shown.length) open(setting.shown[0]); });
    svg.append(titled(line, `${said(setting)}: ${result(setting.mean)}`));
  }
  fields.forEach((field, i) => {
    const x = left + step * i;
    svg.append(drawing("line", { x1: x, x2: x, y1: top, y2: top + high, class: "axis" }), drawing("text", { x: x - 8, y: 14, class: "soft" }, field));
    for (const value of places.get(field)) svg.append(drawing("text", { x: x + 5, y: height(field, value) + 4, class: "over" }, value));
  });
  const x = left + step * fields.length;
  svg.append(drawing("line", { x1: x, x2: x, y1: top, y2: top + high, class: "axis" }), drawing("text", { x: x - 8, y: 14, class: "soft" }, $("sweepby") ? $("sweepby").selectedOptions[0].textContent : "held-out loss"));
  for (const value of most > low ? [low, most] : [low]) svg.append(drawing("text", { x: x + 6, y: last(value) + 4 }, result(value)));
  return svg;
}

function settingTable(found) {
  const rowsOf = found.settings.slice(0, SHOWN_SETTINGS).map((setting) => {
    const line = element("tr"), mean = setting.mean === null ? "" : result(setting.mean) + (setting.error === null ? "" : ` ± ${setting.error.toPrecision(2)}`) + (setting.states.done ? "" : " so far");
    line.append(...found.fields.map((field) => element("td", String(setting.values[field] ?? ""))), element("td", mean, { class: "mean" }),
      element("td", setting.runs.length > 1 ? `${setting.runs.length}` : ""), element("td", states(setting.states)));
    line.addEventListener("click", () => { if (setting.shown.length) open(setting.shown[0]); });
    return line;
  });
  const made = table([heading(...found.fields, { loss: "held-out loss", forecast: "forecast loss", seconds: "seconds", tokens_per_second: "positions/s" }[found.by], "seeds", "")], "settings");
  made.append(...rowsOf);
  const around = element("div", "", { class: "scroll" });
  around.append(made);
  return around;
}
