"use strict";
// Draws each figure of the page from the numbers beside it; drag to zoom, double-click for the whole axis.
for (const box of document.querySelectorAll("[data-plot]")) {
  const found = JSON.parse(box.querySelector("script").textContent);
  if (found.x.length < 2) continue;
  const short = (v) => {
    if (v === null || v === undefined) return "";
    for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
      if (Math.abs(v) >= size) return `${+(v / size).toPrecision(3)}${unit}`;
    return `${+v.toPrecision(4)}`;
  };
  const line = (one) => ({ label: one.label, stroke: one.colour, width: one.width || 1, dash: one.dashed ? [4, 4] : undefined, spanGaps: true,
    points: { show: !one.dashed && one.width > 2, size: 5, fill: one.colour }, value: (_, v) => (v === null ? "" : v.toFixed(3)) });
  const axis = { stroke: "#555", grid: { stroke: "#eee", width: 1 }, ticks: { stroke: "#bbb", width: 1 } };
  const place = document.createElement("div"), bar = document.createElement("p");
  const logs = { x: false, y: false };
  let plot = null;
  const draw = () => {
    if (plot) plot.destroy();
    plot = new uPlot({
      width: Math.max(300, box.clientWidth), height: 320,
      scales: { x: { time: false, distr: logs.x ? 3 : 1 }, y: { distr: logs.y ? 3 : 1 } },
      series: [{ label: found.titles.x, value: (_, v) => short(v) }, ...found.series.map(line)],
      axes: [{ ...axis, label: found.titles.x, values: (_, all) => all.map(short) }, { ...axis, label: found.titles.y, size: 60, values: (_, all) => all.map(short) }],
    }, [found.x, ...found.series.map((one) => one.y)].map((all) => (logs.x ? all.filter((_, i) => found.x[i] > 0) : all)), place);
  };
  for (const name of ["x", "y"]) {
    const label = document.createElement("label"), tick = document.createElement("input");
    tick.type = "checkbox";
    tick.addEventListener("change", () => { logs[name] = tick.checked; draw(); });
    label.append(tick, ` log ${name}`);
    bar.append(label);
  }
  bar.append("drag to zoom, double-click for the whole axis");
  box.firstElementChild.replaceWith(place);
  box.append(bar);
  draw();
  addEventListener("resize", () => plot.setSize({ width: Math.max(300, box.clientWidth), height: 320 }));
}
