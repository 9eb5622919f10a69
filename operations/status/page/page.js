"use strict";
// Where more clusters than this are shown, those without anything to report have a line, not a card.
const MOST_CARDS = 24;
// Where more machines than this are shown, only those that are not ready are named.
const MOST_CHIPS = 240;
const MOST_TILES = 60;
const MOST_POOLS = 12;
const STATES = {
  Failed: "bad", Unreachable: "warn", Degraded: "warn", Deleting: "busy", Progressing: "busy",
  Parked: "pause", Paused: "pause", Available: "ok",
};
const SEVERITIES = {error: "bad", warning: "warn", waiting: "busy", note: "stale-kind"};
// What exists and does not work has the colour of the cluster's state.
const UNAVAILABLE = {Failed: "bad", Degraded: "warn", Unreachable: "stale-kind"};
const KINDS = {ok: "ok", busy: "busy", warn: "warn", bad: "bad", stale: "stale-kind"};
// Not by its colour alone: two kinds of machines never have the same mark.
const MARKS = {ok: "", busy: "… ", warn: "! ", bad: "✕ ", stale: "~ "};
const LEGEND = {ok: "ready", busy: "pending", warn: "warning", bad: "failed", stale: "as last seen"};

let data = null, gone = "", quietOpened;
const states = new Set(), openHosts = new Set();
const byId = id => document.getElementById(id);

// Everything is text: names and messages come from objects that others write.
function el(tag, classes, ...children) {
  const node = document.createElement(tag);
  if (classes) node.className = classes;
  for (const child of children) {
    if (child !== null && child !== undefined && child !== "") node.append(child);
  }
  return node;
}

// Make a node equal to another one by changing only what differs. What a user has focused, selected
// or scrolled to stays, and screen readers hear of nothing but changes.
function update(node, wanted) {
  if (node.nodeName !== wanted.nodeName || node.dataset?.key !== wanted.dataset?.key) {
    node.replaceWith(wanted);
    return;
  }
  if (node.nodeType === Node.TEXT_NODE) {
    if (node.data !== wanted.data) node.data = wanted.data;
    return;
  }

  // The policy of the page forbids the attribute style, and arrange() has set it on cards.
  const names = new Set([...node.getAttributeNames(), ...wanted.getAttributeNames()]);
  names.delete("style");
  for (const name of names) {
    const value = wanted.getAttribute(name);
    if (value === null) node.removeAttribute(name);
    else if (node.getAttribute(name) !== value) node.setAttribute(name, value);
  }
  if (wanted.style.cssText) node.style.cssText = wanted.style.cssText;
  updateChildren(node, [...wanted.childNodes]);
}

function updateChildren(node, wanted) {
  while (node.childNodes.length > wanted.length) node.lastChild.remove();
  wanted.forEach((child, index) => {
    if (index < node.childNodes.length) update(node.childNodes[index], child);
    else node.append(child);
  });
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function age(since) {
  const seconds = Math.max(0, (Date.now() - Date.parse(since)) / 1000);
  if (!Number.isFinite(seconds)) return "";
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["m", 60]]) {
    if (seconds >= 2 * size) return Math.floor(seconds / size) + unit;
  }
  return Math.floor(seconds) + "s";
}

function remaining(moment) {
  const seconds = (Date.parse(moment) - Date.now()) / 1000;
  if (seconds <= 0) return "now";
  return seconds < 60 ? `in ${Math.ceil(seconds)} s` : `in ${Math.round(seconds / 60)} min`;
}

const short = version => version.split("+")[0];
const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

function versions(cluster) {
  const others = cluster.versions.filter(version => version !== cluster.version);
  return others.length ? `${short(others[0])} → ${short(cluster.version)}` : cluster.version;
}

// Clusters

function bar(parts, total, text) {
  const box = el("div", "bar");
  box.role = "img";
  box.ariaLabel = text;
  for (const [number, kind] of parts) {
    const fill = el("i", kind);
    fill.style.width = total ? `${100 * number / total}%` : "0";
    box.append(fill);
  }
  return box;
}

function replicas(label, value, state) {
  const broken = Math.max(0, value.current - value.available);
  const parts = [[value.available, ""], [broken, UNAVAILABLE[state] || "busy"]];
  const text = `${value.available} available, ${broken} not available, ${value.desired} wanted`;
  const existing = value.current === Math.max(value.desired, value.available) ? "" : `, ${value.current} exist`;
  return [
    el("span", "dim", label),
    bar(parts, Math.max(value.desired, value.current), text),
    el("span", "mono", `${value.available}/${value.desired}${existing}`),
  ];
}

function acts(problem) {
  if (problem.replaced) return el("div", "acts", `⟳ ${problem.replaced}`);
  if (!problem.replacedAt) return null;
  const first = problem.objects.length > 1 ? "first " : "";
  return el("div", "acts", `⟳ ${first}replaced ${remaining(problem.replacedAt)} by a MachineHealthCheck`);
}

function problemBox(problem) {
  const more = problem.objects.length - 1;
  const title = el("div", "row",
    el("span", "badge " + SEVERITIES[problem.severity], problem.severity),
    el("b", "", problem.objects[0] + (more ? ` and ${more} more` : "")),
    el("span", "dim small", age(problem.since)));
  const next = problem.nextStep ? el("div", "next", "→ " + problem.nextStep) : null;
  return el("div", "problem", title, el("div", "", problem.cause), acts(problem), next);
}

function clusterCard(cluster) {
  const head = el("div", "row",
    el("h3", "name", cluster.name),
    el("span", "dim small", cluster.namespace),
    el("span", "badge right " + STATES[cluster.state], cluster.state));
  const facts = el("div", "row small dim",
    el("span", "mono", versions(cluster)),
    el("span", "mono", cluster.endpoint),
    el("span", "", cluster.addons),
    el("span", "right", age(cluster.created)));
  const bars = el("div", "bars",
    ...replicas("control plane", cluster.controlPlane, cluster.state),
    ...replicas("workers", cluster.workers, cluster.state));
  return el("article", `card ${cluster.worst}`, head, facts, bars,
    ...cluster.problems.map(problem => problemBox(problem)));
}

// One line: for clusters that need no attention, and for those that share a cause.
function tile(cluster) {
  const {controlPlane, workers, state} = cluster;
  return el("li", "tile",
    el("span", "label", el("b", "", cluster.name), el("span", "dim", ` ${cluster.namespace}`)),
    el("span", "row right",
      state === "Available" ? null : el("span", "badge " + STATES[state], state),
      el("span", "mono dim", short(versions(cluster))),
      el("span", "mono", el("span", "spoken", "control plane "), `${controlPlane.available}/${controlPlane.desired}`),
      el("span", "mono", el("span", "spoken", "workers "), `${workers.available}/${workers.desired}`)));
}

function tiles(clusters) {
  const columns = "Version, available control plane machines, available workers:";
  return [el("p", "dim small", columns), el("ul", "tiles", ...clusters.map(tile))];
}

// What clusters have in common is one card, whatever their number.
function causeCard({cause, clusters}) {
  const head = el("div", "row",
    el("h3", "name", cause.subject),
    el("span", "badge right " + SEVERITIES[cause.severity], count(clusters.length, "cluster")));
  const objects = clusters.map(cluster => `Cluster/${cluster.name}`);
  return el("article", `card wide ${cause.severity}`, head, problemBox({...cause, objects}),
    ...tiles(clusters));
}

function causes(clusters) {
  return data.causes
    .map(cause => ({cause, clusters: clusters.filter(({namespace, name}) =>
      cause.clusters.includes(`${namespace}/${name}`))}))
    .filter(shared => shared.clusters.length);
}

function clusterCards(clusters) {
  const shared = causes(clusters);
  const covered = new Set(shared.flatMap(each => each.clusters.filter(({problems}) => !problems.length)));
  const single = clusters.filter(cluster => !covered.has(cluster));
  const quiet = single.length > MOST_CARDS
    ? single.filter(cluster => cluster.state === "Available" && !cluster.problems.length) : [];
  const cards = single.filter(cluster => !quiet.includes(cluster));
  return [[...shared.map(causeCard), ...cards.map(clusterCard)], quiet];
}

function nothing() {
  if (data.clusters.length) return el("p", "dim", "No cluster matches.");
  return el("p", "dim", "No clusters on Harvester. Create one: ",
    el("code", "", "caphv generate --interactive"));
}

// Rollouts

const complete = ({desired, current, available, upToDate}) =>
  desired === current && desired === available && desired === upToDate;

// Only what the cluster's own card does not say: a rollout, and which of several groups is incomplete.
function groupsOf(cluster) {
  if (["Deleting", "Unreachable", "Parked", "Paused"].includes(cluster.state)) return [];
  const several = cluster.groups.length > 2 && cluster.state !== "Failed";
  return cluster.groups
    .filter(({replicas}) => !complete(replicas))
    .filter(({replicas}) => several || replicas.upToDate < replicas.current
      || replicas.current !== replicas.desired)
    .map(group => ({group, cluster}));
}

function rolloutCard({group, cluster}) {
  const value = group.replicas, total = Math.max(value.desired, value.current);
  const old = Math.max(0, value.current - value.upToDate);
  const broken = Math.max(0, value.current - value.available);
  return el("article", "card",
    el("h3", "name", group.name || cluster.name),
    el("div", "row small dim", el("span", "", `${cluster.namespace}/${cluster.name}`),
      el("span", "mono right", group.version)),
    el("div", "bars",
      el("span", "dim", "up to date"),
      bar([[value.upToDate, ""], [old, "busy"]], total, `${old} of another version or spec`),
      el("span", "mono", `${value.upToDate}/${value.desired}`),
      ...replicas("available", value, cluster.state)));
}

// Machines

function machineItem({machine, cluster}, detailed) {
  const role = machine.controlPlane ? "control plane" : "worker";
  const classes = `chip mono ${KINDS[machine.kind]}${machine.controlPlane ? " control-plane" : ""}`;
  const chip = el("span", classes, MARKS[machine.kind] + machine.name);
  if (!detailed) return el("li", "", chip, el("span", "spoken", ` ${role}, ${LEGEND[machine.kind]}`));

  const facts = [
    `${cluster.namespace}/${cluster.name}`, role, machine.version, machine.addresses.join(", "), machine.text,
  ];
  return el("li", "", chip, el("div", "small dim", facts.filter(Boolean).join(" · ")));
}

function grouped(items, key) {
  const groups = new Map();
  for (const item of items) {
    const name = key(item);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(item);
  }
  return [...groups].sort(([a], [b]) =>
    (a === "") - (b === "") || natural(a, b));
}

function hostBox(key, host, items, many) {
  const detailed = openHosts.has(key);
  const named = many && !detailed ? items.filter(({machine}) => machine.kind !== "ok") : items;
  const ready = items.filter(({machine}) => machine.kind === "ok").length;
  const button = el("button", "host-name", host || "not placed");
  button.type = "button";
  button.dataset.key = key;
  button.ariaExpanded = detailed;

  return el("div", "host",
    el("div", "row", el("h4", "", button),
      el("span", "dim small right", many ? `${ready} ready of ${items.length}` : items.length)),
    named.length ? el("ul", detailed ? "machines" : "chips",
      ...named.map(item => machineItem(item, detailed))) : null);
}

function zoneCard([zone, items], many, server, named) {
  const hosts = grouped(items, ({machine}) => machine.host);
  return el("article", "card",
    el("div", "row", el("h3", "name", zone || "No zone"),
      el("span", "dim small right", count(items.length, "machine"))),
    named ? el("div", "small dim mono", server) : null,
    ...hosts.map(([host, own]) => hostBox(`${server}/${zone}/${host}`, host, own, many)));
}

// Hosts of two Harvesters may have the same name, as may their zones.
function zoneCards(machines) {
  const many = machines.length > MOST_CHIPS;
  const servers = grouped(machines, ({cluster}) => cluster.harvester);
  return servers.flatMap(([server, items]) =>
    grouped(items, ({machine}) => machine.zone).map(zone => zoneCard(zone, many, server, servers.length > 1)));
}

function legend(items) {
  const present = new Set(items.map(({machine}) => machine.kind));
  const node = el("span", "", el("span", "chip control-plane", "control plane"));
  for (const [kind, text] of Object.entries(LEGEND)) {
    if (present.has(kind)) node.append(" ", el("span", `chip ${KINDS[kind]}`, MARKS[kind] + text));
  }
  return node;
}

// Pools and Events

const share = pool => pool.free === undefined ? -1 : pool.total ? pool.free / pool.total : 0;

function poolCard(pool) {
  const invalid = pool.free === undefined, used = invalid ? 0 : pool.total - pool.free;
  const kind = invalid || pool.free === 0 ? "bad" : share(pool) < 0.1 ? "warn" : "busy";
  const free = invalid ? "invalid" : `${pool.free} free of ${pool.total}`;
  return el("article", "card",
    el("div", "row", el("h3", "name", pool.name), el("span", "right mono small", free)),
    el("div", "small dim mono", pool.harvester),
    el("div", "bars", el("span", "dim", "in use"), bar([[used, kind]], pool.total, free),
      el("span", "mono", used)));
}

function poolCards(pools) {
  const sorted = [...pools].sort((a, b) => share(a) - share(b));
  const rest = sorted.length - MOST_POOLS;
  const cards = sorted.slice(0, MOST_POOLS).map(poolCard);
  if (rest > 0) cards.push(el("p", "dim small", `${count(rest, "pool")} with more left`));
  return cards;
}

function eventRow(event) {
  const badge = el("span", "badge " + (event.type === "Warning" ? "warn" : "ok"), event.words);
  badge.title = event.reason;
  return el("tr", "",
    el("td", "nowrap dim", age(event.time)),
    el("td", "nowrap", badge),
    el("td", "object", el("span", "dim small", event.namespace + " "), el("span", "mono", event.object)),
    el("td", "message", event.message + (event.count > 1 ? ` (×${event.count})` : "")));
}

function objectsOf(cluster) {
  const names = cluster.machines.flatMap(machine => [machine.name, machine.infrastructure]);
  return [cluster.name, cluster.infrastructure, ...names].map(name => `${cluster.namespace}/${name}`);
}

// The page

const natural = new Intl.Collator(undefined, {numeric: true}).compare;
const byName = (a, b) => natural(a.namespace, b.namespace) || natural(a.name, b.name);

function stateBadge([state, number]) {
  const badge = el("button", "badge " + STATES[state], `${number} ${state.toLowerCase()}`);
  badge.type = "button";
  badge.dataset.key = state;
  badge.ariaPressed = states.has(state);
  return badge;
}

function fill(id, items) {
  updateChildren(byId(id), items);
  const section = byId(id + "-section");
  if (section) section.hidden = !items.length && id !== "clusters";
}

// Let each card span the rows that it covers: all are measured first, which costs one layout.
function arrange() {
  const cards = [...document.querySelectorAll(".masonry > *")];
  const heights = cards.map(card => card.getBoundingClientRect().height);
  cards.forEach((card, index) => { card.style.gridRowEnd = `span ${Math.ceil((heights[index] + 14) / 2)}`; });
}

function drawProvider() {
  const provider = data.provider && data.provider.silent ? data.provider : null;
  byId("provider").hidden = !provider;
  if (!provider) return;
  fill("provider", [
    el("div", "row", el("span", "badge bad", "provider"), el("b", "", provider.cause),
      el("span", "dim small", age(provider.since))),
    el("div", "next", "→ " + provider.nextStep)]);
}

function draw() {
  if (!data) return;
  const focused = document.activeElement?.dataset.key;
  const order = Object.keys(STATES);
  const wanted = byId("filter").value.trim().toLowerCase();
  const present = new Set(data.clusters.map(cluster => cluster.state));
  const chosen = new Set([...states].filter(state => present.has(state)));
  const clusters = data.clusters
    .filter(cluster => `${cluster.namespace}/${cluster.name}`.toLowerCase().includes(wanted))
    .filter(cluster => !chosen.size || chosen.has(cluster.state))
    .sort((a, b) => order.indexOf(a.state) - order.indexOf(b.state) || byName(a, b));

  byId("server").textContent = data.server.replace(/^https:\/\//, "");
  const numbers = items => order
    .map(state => [state, items.filter(cluster => cluster.state === state).length])
    .filter(([, number]) => number);
  fill("counts", numbers(data.clusters).map(stateBadge));
  const parts = numbers(clusters).map(([state, number]) => `${number} ${state.toLowerCase()}`);
  setText(byId("summary"), [`${count(clusters.length, "cluster")} shown`, ...parts].join(", "));
  drawProvider();

  const [cards, quiet] = clusterCards(clusters);
  fill("clusters", clusters.length ? cards : [nothing()]);
  fill("quiet", tiles(quiet));
  byId("quiet-box").hidden = !quiet.length;
  byId("quiet-box").open = quietOpened ?? (wanted !== "" || quiet.length <= MOST_TILES);
  setText(byId("quiet-title"), `${count(quiet.length, "cluster")} without anything to report`);
  fill("rollouts", clusters.flatMap(groupsOf).map(rolloutCard));

  const machines = clusters.flatMap(cluster => cluster.machines.map(machine => ({machine, cluster})));
  fill("hosts", zoneCards(machines));
  fill("legend", [legend(machines)]);
  fill("pools", poolCards(data.pools));

  const shown = wanted || chosen.size ? new Set(clusters.flatMap(objectsOf)) : null;
  fill("events", data.events
    .filter(event => !shown || shown.has(`${event.namespace}/${event.object.split("/")[1]}`))
    .map(eventRow));
  fill("unseen", data.unseen.map(what => el("div", "", "not seen: " + what)));
  arrange();
  // What had the focus may be a new element.
  if (focused && document.activeElement === document.body) {
    document.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({preventScroll: true});
  }

  const wrong = data.clusters.filter(cluster => cluster.wrong).length;
  document.title = wrong ? `(${wrong}) caphv` : "caphv";
}

function live(since) {
  gone = since;
  const fault = gone || (data && data.fault);
  setText(byId("live"), fault || "live");
  byId("live").className = "badge " + (fault ? "bad" : "ok");
  document.body.classList.toggle("stale", Boolean(fault));
}

const source = new EventSource("events");
source.onopen = () => live("");
source.onmessage = event => { data = JSON.parse(event.data); live(""); draw(); };
source.onerror = () => live(gone || `disconnected since ${new Date().toLocaleTimeString()}`);
byId("filter").addEventListener("input", draw);
byId("quiet-title").addEventListener("click", () => { quietOpened = !byId("quiet-box").open; });
for (const [id, chosen] of [["counts", states], ["hosts", openHosts]]) {
  byId(id).addEventListener("click", event => {
    const key = event.target.closest("button")?.dataset.key;
    if (key === undefined) return;
    if (!chosen.delete(key)) chosen.add(key);
    draw();
  });
}
byId("theme").addEventListener("click", () => {
  const root = document.documentElement.dataset;
  const dark = root.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  root.theme = dark === "dark" ? "light" : "dark";
});
new ResizeObserver(arrange).observe(byId("clusters"));
setInterval(draw, 15000);
