// An icon of the sprite as an element; static/src/icons.txt lists the names.

const SVG = "http://www.w3.org/2000/svg";

export function icon(name: string): SVGSVGElement {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `/static/dist/icons.svg#${name}`);
  svg.append(use);
  return svg;
}
