// The components of pages; see README.md.
export * from "./amounts";
export * from "./chart";
export * from "./combobox";
export * from "./csv";
export * from "./dialog";
export * from "./form";
export * from "./links";
export * from "./numbers";
export * from "./parts";
export * from "./segments";
export { Swatch } from "./seriesMarks";
export * from "./settings";
export * from "./standards";
export * from "./table";
export * from "./tabs";
