// What draws every picture, on the page, in notebooks and in the documentation.
import { drawMapping } from "./mapping.js";
import { drawMatrix } from "./matrix.js";
import { drawStructure } from "./structure.js";

/** Draw a picture, which is plain data with a `kind`, into an element. */
export function draw(element, data) {
  const kinds = { mapping: drawMapping, structure: drawStructure, matrix: drawMatrix };
  if (!kinds[data.kind]) throw new Error(`a picture must be one of ${Object.keys(kinds).join(", ")}; got ${data.kind}`);
  element.classList.add("pmx");
  return kinds[data.kind](element, data);
}
