// Formats the amounts of one column with equal decimal places, so that their points are aligned.
import { type Exact, decimal } from "../../kit";

export function alike(column: Iterable<Exact>): (value: Exact) => string {
  const fraction = (text: string) => text.length - text.indexOf(".") - 1;
  let places = 2;
  for (const value of column) places = Math.max(places, fraction(decimal(value)));
  return (value) => {
    const text = decimal(value);
    return text + "0".repeat(Math.max(0, places - fraction(text)));
  };
}
