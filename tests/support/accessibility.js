// What keeps people from using the page as it is shown: each finding is a rule and an element that breaks it.
(() => {
  const all = selector => [...document.querySelectorAll(selector)];
  const shown = selector => all(selector).filter(node => node.checkVisibility({visibilityProperty: true}));
  const letters = text => text.toLowerCase().replace(/[^\p{L}\p{N}]/gu, "");
  const owns = node => [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
  const small = ({width, height}) => width < 24 || height < 24;
  const cut = node => getComputedStyle(node).overflowX !== "visible" && node.scrollWidth > node.clientWidth;
  const headless = ({rows}) => ![...rows[0].cells].every(cell => cell.matches("th[scope=col]"))
    || [...rows].some(row => row.cells.length !== rows[0].cells.length);
  const levels = shown("h1, h2, h3, h4, h5, h6").map(node => [node, Number(node.tagName[1])]);

  const broken = {
    "no language or title": document.documentElement.lang && document.title ? [] : all("html"),
    "not one main landmark": shown("main").length === 1 ? [] : all("body"),
    "text outside of landmarks": shown("body *").filter(node => owns(node)
      && !node.closest("header, main, section[aria-label]")),
    "section without a name": shown("section:not([aria-label], [aria-labelledby])"),
    "id of two elements": all("[id]").filter(node => document.getElementById(node.id) !== node),
    "named by no element": all("[aria-labelledby]")
      .filter(node => !document.getElementById(node.getAttribute("aria-labelledby"))),
    "not one first heading": levels[0]?.[1] === 1 && all("h1").length === 1 ? [] : all("body"),
    "level of a heading left out": levels
      .filter(([, level], index) => index && level > levels[index - 1][1] + 1).map(([node]) => node),
    "table without a header for each cell": shown("table").filter(headless),
    "list with other children": shown("ul > :not(li), :not(ul, ol) > li"),
    "details in a title only": shown("[title]").filter(node => !letters(node.textContent).includes(letters(node.title))),
    "colour alone": shown(".badge, .chip").filter(node => !letters(node.textContent)),
    "small target": shown("a[href], button, input, summary").filter(node => small(node.getBoundingClientRect())),
    "cut text": shown("body *:not(.spoken, .bar)").filter(cut),
    "interrupts": all("[role=alert], [aria-live=assertive], [autofocus]"),
    "order of focus": all("[tabindex]").filter(node => node.tabIndex > 0),
  };
  return Object.entries(broken)
    .flatMap(([rule, nodes]) => nodes.map(node => `${rule}: ${node.outerHTML.slice(0, 160)}`));
})()
