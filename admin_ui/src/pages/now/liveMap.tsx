// The page arena as a map: one square per page, in page order, coloured by model or by tier. Pointer and arrow keys
// read it, the legend highlights an owner, and a table has the same numbers.
import { type KeyboardEvent, type PointerEvent, useEffect, useMemo, useRef, useState } from "react";
import { Segments, bytes, count, useShade, useView } from "../../kit";
import {
  type By,
  type EngineEvent,
  type Group,
  MARKS,
  type Paint,
  type Palette,
  cells,
  groupsOf,
  hex,
  isOf,
  layout,
  mix,
  modelsOf,
  nameOf,
  ownerKey,
  ownerWords,
  paintsOf,
  paletteOf,
} from "./liveArena";
import type { Model } from "../serve/modelParts";

const MARKED_PX_MIN = 8;
const MARK_ALPHA = 0.7;

export interface Look {
  palette: Palette;
  /** Undefined if there is only one model. */
  choose: ((by: By) => void) | undefined;
}

/** The colours of the map and its legend in the current theme. `models`: all models, if known. With several models the
 * default is to colour by model. */
export function useLook(event: EngineEvent, models: readonly Model[] | undefined): Look {
  const shade = useShade();
  const view = useView({ by: "" });
  const known = models === undefined ? modelsOf(event).join("\n") : models.map((model) => model.name).join("\n");
  const several =
    models === undefined ? modelsOf(event).length > 1 : models.filter((model) => model.state !== "removed").length > 1;
  const by: By = view.values.by === "tier" || !several ? "tier" : "model";
  const tiers = event.tiers.map((tier) => tier.tier).join("\n");
  const palette = useMemo(
    () =>
      paletteOf(
        by,
        tiers.split("\n"),
        new Map(known.split("\n").map((name, index) => [name, index])),
        getComputedStyle(document.documentElement),
      ),
    // eslint-disable-next-line react-hooks/exhaustive-deps -- the colours are read from the styles of `shade`
    [by, tiers, known, shade],
  );
  return { palette, choose: several ? (chosen) => view.set({ by: chosen === "tier" ? "tier" : "" }) : undefined };
}

export function ArenaMap({ event, look: { palette, choose } }: { event: EngineEvent; look: Look }) {
  const [asTable, setAsTable] = useState(false);
  const [picked, setPicked] = useState<string | null>(null);
  const groups = groupsOf(event, palette);
  const only = groups.some((group) => group.key === picked) ? picked : null;
  const { arena } = event;
  return (
    <figure className="arena" aria-label="The page arena">
      <figcaption>
        <h2>Page arena</h2>
        <span className="note num">
          {count(arena.pages)} pages of {bytes(arena.page_bytes)}, {bytes(arena.pages * arena.page_bytes)} in total
          {arena.map_cell_pages > 1 && `; one square is ${arena.map_cell_pages} pages, coloured by the first page`}
        </span>
        <span className="actions">
          {choose !== undefined && (
            <Segments
              label="Colour by"
              options={[
                ["model", "by model"],
                ["tier", "by tier"],
              ]}
              value={palette.by}
              onChange={choose}
            />
          )}
          <button
            type="button"
            className="button button-quiet"
            aria-pressed={asTable}
            onClick={() => setAsTable(!asTable)}
          >
            {asTable ? "Map" : "Table"}
          </button>
        </span>
      </figcaption>
      {asTable ? <OwnerTable event={event} /> : <MapCanvas event={event} palette={palette} only={only} />}
      <Legend groups={groups} pages={arena.pages} palette={palette} only={only} onOnly={setPicked} />
    </figure>
  );
}

function Legend({
  groups,
  pages,
  palette,
  only,
  onOnly,
}: {
  groups: readonly Group[];
  pages: number;
  palette: Palette;
  only: string | null;
  onOnly: (key: string | null) => void;
}) {
  return (
    <ul className="arena-legend" aria-label="Pages by owner; select an owner to highlight its pages">
      {groups.map((group) => (
        <li key={group.key}>
          <button
            type="button"
            aria-pressed={only === group.key}
            onClick={() => onOnly(only === group.key ? null : group.key)}
          >
            <Swatch of={group.paint} surface={palette.surface} />
            <span>{group.label}</span>
            <b className="num">{share(group.pages, pages)}</b>
            <span className="faint num">{count(group.pages)}</span>
          </button>
        </li>
      ))}
    </ul>
  );
}

function Swatch({ of: { colour, mark }, surface }: { of: Paint; surface: Palette["surface"] }) {
  return (
    <svg viewBox="0 0 10 10" aria-hidden="true">
      <rect className="swatch" width="10" height="10" fill={hex(colour)} />
      {mark > 0 && <path d={MARKS[mark]} fill={hex(surface)} />}
    </svg>
  );
}

function share(part: number, whole: number): string {
  const value = whole === 0 ? 0 : (part / whole) * 100;
  return `${value > 0 && value < 10 ? value.toFixed(1) : Math.round(value)} %`;
}

function OwnerTable({ event: { arena } }: { event: EngineEvent }) {
  return (
    <div className="table-scroll chart-twin" tabIndex={0} role="region" aria-label="The page arena, as a table">
      <table className="table table-small">
        <caption className="sr-only">Pages by owner</caption>
        <thead>
          <tr>
            <th scope="col">Owner</th>
            <th scope="col">Tier</th>
            <th scope="col">Model</th>
            <th scope="col">Adapter</th>
            <th scope="col" className="end">
              Pages
            </th>
            <th scope="col" className="end">
              Share
            </th>
            <th scope="col" className="end">
              Bytes
            </th>
          </tr>
        </thead>
        <tbody>
          {arena.owners.map((owner) => (
            <tr key={`${ownerKey(owner)}/${owner.adapter_digest}`}>
              <th scope="row">{owner.kind === "kv" ? "KV" : owner.kind}</th>
              <td>{owner.tier}</td>
              <td>{owner.model}</td>
              <td>{nameOf(owner.adapter)}</td>
              <td className="end num">{count(owner.pages)}</td>
              <td className="end num">{share(owner.pages, arena.pages)}</td>
              <td className="end num">{bytes(owner.pages * arena.page_bytes)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function MapCanvas({ event, palette, only }: { event: EngineEvent; palette: Palette; only: string | null }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useWidth(canvas);
  const [at, setAt] = useState<number | null>(null);
  const [focused, setFocused] = useState(false);
  const { arena } = event;
  const drawn = useMemo(() => cells(arena), [arena]);
  const grid = layout(width, drawn.length);
  const cursor = at === null || at >= drawn.length ? null : at;
  useEffect(() => {
    if (canvas.current === null || width === 0) return;
    const paints = paintsOf(event, palette).map((one, index) =>
      only === null || isOf(arena.owners[index]!, only, palette.by)
        ? one
        : { colour: mix(one.colour, palette.surface, 0.82), mark: 0 },
    );
    draw(canvas.current, drawn, grid, paints, palette, cursor);
    // eslint-disable-next-line react-hooks/exhaustive-deps -- `drawn` and `grid` follow from the event and the width
  }, [drawn, width, palette, only, cursor]);
  const point = ({ nativeEvent: { offsetX, offsetY } }: PointerEvent) => {
    const [column, row] = [Math.floor(offsetX / grid.cell), Math.floor(offsetY / grid.cell)];
    const found = row * grid.columns + column;
    setAt(column < grid.columns && found >= 0 && found < drawn.length ? found : null);
  };
  const key = (pressed: KeyboardEvent) => {
    const next = moved(pressed.key, cursor, drawn, grid.columns);
    if (next === null) return;
    pressed.preventDefault();
    setAt(next);
  };
  return (
    <>
      <div
        className="arena-map"
        role="group"
        tabIndex={0}
        onKeyDown={key}
        onFocus={() => setFocused(true)}
        onBlur={() => setFocused(false)}
        aria-label="Map of the page arena. Arrow keys move between pages, Page Up and Page Down between owners; the table has the same numbers."
      >
        <canvas ref={canvas} onPointerMove={point} onPointerLeave={() => setAt(null)} />
      </div>
      <p className="arena-readout num" role="status" aria-live={focused ? "polite" : "off"}>
        {cursor === null ? (
          <span className="faint">Point at a page, or move to a page with the arrow keys.</span>
        ) : (
          <Readout event={event} drawn={drawn} at={cursor} />
        )}
      </p>
    </>
  );
}

function Readout({ event: { arena }, drawn, at }: { event: EngineEvent; drawn: Uint16Array; at: number }) {
  const owner = arena.owners[drawn[at] ?? 0];
  const [first, last] = [edge(drawn, at, -1), edge(drawn, at, 1)];
  const each = arena.map_cell_pages;
  const end = Math.min(arena.pages, (last + 1) * each) - 1;
  return (
    <>
      Page <b>{count(at * each)}</b>: {owner === undefined ? "unknown" : ownerWords(owner)}
      {end > first * each && (
        <span className="faint">
          , like all of {count(first * each)}–{count(end)}
        </span>
      )}
    </>
  );
}

/** The last cell in a direction that has the same owner. */
function edge(drawn: Uint16Array, from: number, by: 1 | -1): number {
  let at = from;
  while (at + by >= 0 && at + by < drawn.length && drawn[at + by] === drawn[from]) at += by;
  return at;
}

function moved(key: string, cursor: number | null, drawn: Uint16Array, columns: number): number | null {
  const from = cursor ?? 0;
  const within = (at: number) => Math.max(0, Math.min(drawn.length - 1, at));
  if (key === "Home") return 0;
  if (key === "End") return drawn.length - 1;
  if (cursor === null && /^(Arrow|Page)/.test(key)) return 0;
  if (key === "ArrowRight") return within(from + 1);
  if (key === "ArrowLeft") return within(from - 1);
  if (key === "ArrowDown") return from + columns < drawn.length ? from + columns : from;
  if (key === "ArrowUp") return from - columns >= 0 ? from - columns : from;
  if (key === "PageDown") return within(edge(drawn, from, 1) + 1);
  if (key === "PageUp") return within(edge(drawn, within(edge(drawn, from, -1) - 1), -1));
  return null;
}

/** One pixel per page, then enlarged: the cost hardly depends on how owners are mixed. */
function draw(
  canvas: HTMLCanvasElement,
  drawn: Uint16Array,
  grid: ReturnType<typeof layout>,
  paints: readonly Paint[],
  palette: Palette,
  cursor: number | null,
): void {
  const began = performance.now();
  const { columns, rows } = grid;
  const scale = Math.max(1, Math.round(grid.cell * devicePixelRatio));
  if (canvas.width !== columns * scale || canvas.height !== rows * scale) {
    canvas.width = columns * scale;
    canvas.height = rows * scale;
    canvas.style.width = `${columns * grid.cell}px`;
    canvas.style.height = `${rows * grid.cell}px`;
  }
  const context = canvas.getContext("2d");
  const image = new ImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const words = paints.map(({ colour: [red, green, blue] }) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0); // little-endian RGBA
  for (let at = 0; at < drawn.length; at++) pixels[at] = words[drawn[at]!] ?? 0;
  if (context === null) return;
  const small = new OffscreenCanvas(columns, rows);
  small.getContext("2d")?.putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
  if (scale >= MARKED_PX_MIN) marks(context, drawn, columns, scale, paints, hex(palette.surface));
  if (scale >= 5) lines(context, columns, rows, scale, hex(palette.surface));
  if (cursor !== null) {
    const [x, y] = [(cursor % columns) * scale, Math.floor(cursor / columns) * scale];
    context.lineWidth = Math.max(2, Math.round(scale / 6));
    context.strokeStyle = hex(palette.ink);
    context.strokeRect(x - 1, y - 1, scale + 2, scale + 2);
  }
  performance.clearMeasures("arena");
  performance.measure("arena", { start: began });
}

/** Drawn in cells that are large enough. */
function marks(
  context: CanvasRenderingContext2D,
  drawn: Uint16Array,
  columns: number,
  scale: number,
  paints: readonly Paint[],
  colour: string,
): void {
  const tiles = paints.map(({ mark }) => {
    if (mark === 0) return null;
    const tile = new OffscreenCanvas(scale, scale);
    const inside = tile.getContext("2d")!;
    inside.scale(scale / 10, scale / 10);
    inside.globalAlpha = MARK_ALPHA;
    inside.fillStyle = colour;
    inside.fill(new Path2D(MARKS[mark]));
    return tile;
  });
  for (let at = 0; at < drawn.length; at++) {
    const tile = tiles[drawn[at]!];
    if (tile != null) context.drawImage(tile, (at % columns) * scale, Math.floor(at / columns) * scale);
  }
}

function lines(context: CanvasRenderingContext2D, columns: number, rows: number, scale: number, colour: string): void {
  const width = scale >= 12 ? 2 : 1;
  context.fillStyle = colour;
  for (let column = 1; column <= columns; column++) context.fillRect(column * scale - width, 0, width, rows * scale);
  for (let row = 1; row <= rows; row++) context.fillRect(0, row * scale - width, columns * scale, width);
}

/** The width of the element's parent, in CSS pixels. */
export function useWidth(element: React.RefObject<HTMLElement | null>): number {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const around = element.current?.parentElement;
    if (around == null) return;
    const watch = new ResizeObserver(() => setWidth(Math.floor(around.clientWidth)));
    watch.observe(around);
    return () => watch.disconnect();
  }, [element]);
  return width;
}
