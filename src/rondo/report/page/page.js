"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const COLOURS = 7, DASHES = [[], [9, 5], [2, 4]];
  const hidden = new Set();
  const drawn = new Map();
  let printing = false;

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const light = { "--text": "#1b1f24", "--edge": "#d5dae0", "--s0": "#0072b2", "--s1": "#d55e00", "--s2": "#00805f",
    "--s3": "#b0538f", "--s4": "#a87400", "--s5": "#3c8dc5", "--s6": "#000000", "--other": "#9aa4ae" };
  const colour = (name) => (printing ? light[name] : css(name));
  // A negative style is of what has no colour of its own; of bars, further styles are the same colours, paler.
  const stroke = (style) => (style < 0 ? colour("--other") : colour("--s" + (style % COLOURS)));
  const solid = (style) => stroke(style) + (style >= COLOURS ? "80" : "");
  const dash = (style) => DASHES[style % DASHES.length];

  const short = (v, digits = 2) => {
    if (v === null || v === undefined) return "-";
    if (v === 0) return "0";
    const size = Math.abs(v);
    return size >= 1e6 || size < 1e-4 ? v.toExponential(digits) : String(Number(v.toPrecision(4)));
  };

  // Scores are stored over rounds once; the places on the other axes are those of a group after so many rounds.
  const scoreChart = (axis, option) => {
    const { name, places } = data.scores.axes[axis];
    const lines = option.lines.map((line) => ({ ...line, x: line.x.map((rounds) => places[line.style][rounds]) }));
    return { ...option, lines, x: name, form: "lines", score: true };
  };

  const chosen = () => data.scores.options[Number(document.getElementById("score").value)];
  const chartOf = (figure) => {
    const number = figure.dataset.chart;
    return number.startsWith("score-") ? scoreChart(Number(number.slice(6)), chosen()) : data.charts[Number(number)];
  };

  const visible = (chart) => chart.lines.filter((line) => chart.form === "bars" || !hidden.has(line.style));

  // The lines of a chart on one x axis, for uPlot: a value each, null where a line has no point.
  const aligned = (chart, lines) => {
    const least = chart.log ? lines.flatMap((line) => line.y).reduce((least, y) => (y > 0 && y < least ? y : least), Infinity) / 10 : 0;
    const positive = (v) => (chart.log && v !== null && !(v > 0) ? null : v);
    const end = (v) => (chart.log && v !== null ? Math.max(v, least) : v);
    const xs = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
    const at = new Map(xs.map((x, i) => [x, i]));
    const column = (line, values) => {
      const column = new Array(xs.length).fill(null);
      line.x.forEach((x, i) => { column[at.get(x)] = positive(values[i]); });
      return column;
    };
    const columns = [xs];
    for (const line of lines) {
      columns.push(column(line, line.y));
      if (line.low) columns.push(column(line, line.high), column(line, line.low.map(end)));
    }
    return columns;
  };

  const lineSeries = (lines) => {
    const series = [{}], bands = [];
    for (const line of lines) {
      const few = line.x.length < 40;
      series.push({ label: line.label, stroke: stroke(line.style), width: 2, dash: dash(line.style), spanGaps: true,
        points: { show: few, size: 5, fill: stroke(line.style) } });
      if (!line.low) continue;
      for (let i = 0; i < 2; i++) series.push({ stroke: "transparent", width: 0, spanGaps: true, points: { show: false } });
      bands.push({ series: [series.length - 2, series.length - 1], fill: stroke(line.style) + "2b" });
    }
    return { series, bands };
  };

  // Bars stand on one another: each is drawn from the ground to its sum, the tallest first.
  const stacked = (chart) => {
    const xs = chart.lines[0].x, sums = xs.map(() => 0), columns = [];
    for (const line of chart.lines) {
      line.y.forEach((y, i) => { sums[i] += y; });
      columns.unshift([...sums]);
    }
    const series = [...chart.lines].reverse().map((line) => ({ label: line.label, stroke: solid(line.style),
      fill: solid(line.style), width: 0, paths: uPlot.paths.bars({ size: [0.8, 60] }), points: { show: false } }));
    return { columns: [xs, ...columns], series: [{}, ...series] };
  };

  // The axis of shares, such as the accuracy, ends at 1. Intervals of few seeds can reach beyond what a share can be.
  const within = (chart) => {
    const values = chart.lines.flatMap((line) => line.y);
    const share = chart.share && values.every((y) => y <= 1), positive = share && values.every((y) => y >= 0);
    return (u, low, high) => {
      if (low === 0 && high === 0) return [0, 1];
      const [bottom, top] = uPlot.rangeNum(low, high, 0.1, true);
      return [positive ? Math.max(0, bottom) : bottom, share ? 1 : top];
    };
  };

  const options = (chart, figure, plot) => {
    const grid = { stroke: colour("--edge"), width: 1 }, ticks = { ...grid, size: 4 };
    const text = colour("--text"), font = "12px system-ui, sans-serif", labelFont = "12px system-ui, sans-serif";
    const values = (u, marks) => marks.map((v) => (v === null ? "" : short(v, 1)));
    const names = (u, marks) => marks.map((v) => {
      const name = Number.isInteger(v) ? chart.names[v] : undefined;
      return name === undefined ? "" : name.length > 12 ? name.slice(0, 11) + "…" : name;
    });
    const bars = chart.form === "bars";
    const whole = bars || chart.x === "rounds";
    const axis = { stroke: text, grid, ticks, font, labelFont, labelSize: 20 };
    const logs = (u, marks) => marks.map((v) => (v > 0 && Math.abs(Math.log10(v) % 1) < 1e-9 ? v : null));
    return {
      width: plot.clientWidth, height: plot.clientHeight, legend: { show: false },
      scales: {
        x: { time: false, ...(bars ? { range: [-0.6, chart.names.length - 0.4] } : {}) },
        y: chart.log ? { distr: 3 } : { range: bars ? (u, low, high) => [0, high * 1.05 || 1] : within(chart) },
      },
      axes: [
        { ...axis, label: chart.x, size: 32, space: bars ? 72 : 50, values: bars ? names : values,
          ...(whole ? { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] } : {}) },
        { ...axis, label: chart.y, size: 58, values, ...(chart.log ? { filter: logs } : {}) },
      ],
      cursor: { points: { size: 7 }, drag: { x: !bars, y: false } },
      hooks: { setCursor: [(u) => tell(u, chart, figure)] },
    };
  };

  const tell = (u, chart, figure) => {
    const readout = figure.querySelector(".readout"), i = u.cursor.idx;
    if (i === null || i === undefined) { readout.textContent = ""; return; }
    const x = u.data[0][i];
    const parts = visible(chart).map((line) => [line.label, line.y[line.x.indexOf(x)]]).filter(([, y]) => y !== undefined);
    const place = chart.form === "bars" ? chart.names[x] : chart.x.split(" ")[0] + " " + short(x);
    readout.textContent = place + ": " + parts.map(([label, y]) => label + " " + short(y)).join(", ");
  };

  const draw = (figure) => {
    const plot = figure.querySelector(".plot"), chart = chartOf(figure);
    const before = drawn.get(figure);
    if (before) before.destroy();
    drawn.delete(figure);
    const lines = visible(chart);
    plot.setAttribute("aria-label", figure.querySelector("figcaption").textContent + ": " + chart.y + ". " +
      lines.map((line) => line.label + " ends at " + short(line.y[line.y.length - 1])).join(", "));
    if (!lines.length) return;
    const made = options(chart, figure, plot);
    let columns;
    if (chart.form === "bars") {
      const bars = stacked(chart);
      made.series = bars.series;
      columns = bars.columns;
    } else {
      Object.assign(made, lineSeries(lines));
      columns = aligned(chart, lines);
    }
    drawn.set(figure, new uPlot(made, columns, plot));
    figure.dataset.drawn = String(lines.length);
    const rows = figure.querySelector("details");
    if (rows.open) fill(figure);
  };

  const cell = (name, text, scope) => {
    const made = document.createElement(name);
    made.textContent = text;
    if (scope) made.scope = scope;
    return made;
  };

  // The table under a chart is made when it is opened: it repeats the chart's numbers.
  const fill = (figure) => {
    const chart = chartOf(figure), table = document.createElement("table");
    const head = table.createTHead().insertRow();
    head.append(cell("th", chart.x, "col"), ...chart.lines.map((line) => cell("th", line.label, "col")));
    const body = table.createTBody(), xs = [...new Set(chart.lines.flatMap((line) => line.x))].sort((a, b) => a - b);
    const at = chart.lines.map((line) => new Map(line.x.map((x, i) => [x, i])));
    for (const x of xs) {
      const row = body.insertRow();
      row.append(cell("th", chart.form === "bars" ? chart.names[x] : short(x), "row"));
      chart.lines.forEach((line, number) => {
        const i = at[number].get(x);
        const ends = i !== undefined && line.low && line.low[i] !== null;
        const interval = ends ? " ± " + String(Number(((line.high[i] - line.low[i]) / 2).toPrecision(2))) : "";
        row.append(cell("td", i === undefined ? "-" : short(line.y[i]) + interval));
      });
    }
    const place = figure.querySelector(".rows");
    place.className = "rows scroll numbers";
    place.tabIndex = 0;
    place.setAttribute("role", "region");
    place.setAttribute("aria-label", "Table: " + figure.querySelector("figcaption").textContent);
    place.replaceChildren(table);
  };

  const move = (figure, event) => {
    const u = drawn.get(figure);
    if (!u) return;
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const last = u.data[0].length - 1, now = u.cursor.idx ?? -1;
    const i = Math.max(0, Math.min(last, now + steps[event.key]));
    u.setCursor({ left: u.valToPos(u.data[0][i], "x"), top: u.bbox.height / devicePixelRatio / 2 });
  };

  const swatches = () => {
    for (const swatch of document.querySelectorAll(".swatch")) {
      const style = Number(swatch.dataset.style);
      if (swatch.closest(".key")) { swatch.style.background = solid(style); continue; }
      const [on, off] = dash(style).length ? dash(style) : [1, 0], ink = stroke(style);
      swatch.style.background = "repeating-linear-gradient(90deg," + ink + " 0 " + on + "px,transparent " + on + "px " +
        (on + off) + "px) 0 60% / 100% 3px no-repeat";
    }
  };

  const figures = [...document.querySelectorAll("figure")];
  const drawAll = () => figures.forEach(draw);
  const drawScores = () => figures.filter((figure) => figure.dataset.chart.startsWith("score-")).forEach(draw);

  for (const figure of figures) {
    figure.querySelector("details").addEventListener("toggle", (event) => { if (event.target.open) fill(figure); });
    figure.querySelector(".plot").addEventListener("keydown", (event) => move(figure, event));
  }
  const score = document.getElementById("score");
  if (score) score.addEventListener("change", drawScores);
  for (const button of document.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      const style = Number(button.querySelector(".swatch").dataset.style);
      hidden.has(style) ? hidden.delete(style) : hidden.add(style);
      button.setAttribute("aria-pressed", String(!hidden.has(style)));
      drawAll();
    });
  }
  const sized = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const u = drawn.get(target.parentElement);
      if (u && u.width !== target.clientWidth) u.setSize({ width: target.clientWidth, height: target.clientHeight });
    }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { swatches(); drawAll(); });
  addEventListener("beforeprint", () => { printing = true; swatches(); drawAll(); });
  addEventListener("afterprint", () => { printing = false; swatches(); drawAll(); });

  swatches();
  drawAll();
  document.querySelectorAll(".plot").forEach((plot) => sized.observe(plot));
})();
