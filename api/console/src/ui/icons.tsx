/** The icons: 16 × 16 strokes. */

const PATHS = {
  threads: "M4 2v8a2 2 0 0 0 2 2h4M4 6h6M10 4.5a1.5 1.5 0 1 1 0 3 1.5 1.5 0 0 1 0-3zM12 10.5a1.5 1.5 0 1 1 0 3 1.5 1.5 0 0 1 0-3z",
  inbox: "M2 9l2-6h8l2 6v4H2zM2 9h3.5l1 2h3l1-2H14",
  runs: "M5 3l8 5-8 5z",
  operate: "M2 4h7M13 4h1M2 8h2M8 8h6M2 12h6M12 12h2M11 2.5v3M6 6.5v3M10 10.5v3",
  play: "M3 3h10v7H8l-3 3v-3H3z",
  fork: "M4 2.5v11M4 9c0-2.5 8-1.5 8-5M12 4V2.5",
  edit: "M3 13l.7-3L11 2.7l2.3 2.3L6 12.3zM9.5 4.2l2.3 2.3",
  again: "M13 8a5 5 0 1 1-1.5-3.5M13 2v3h-3",
  stop: "M4 4h8v8H4z",
  chevron: "M6 4l4 4-4 4",
  down: "M4 6l4 4 4-4",
  left: "M10 4L6 8l4 4",
  right: "M6 4l4 4-4 4",
  close: "M4 4l8 8M12 4l-8 8",
  search: "M7 3a4 4 0 1 1 0 8 4 4 0 0 1 0-8zM10 10l3.5 3.5",
  sun: "M8 5a3 3 0 1 1 0 6 3 3 0 0 1 0-6zM8 1.5v1.5M8 13v1.5M1.5 8H3M13 8h1.5M3.5 3.5l1 1M11.5 11.5l1 1M3.5 12.5l1-1M11.5 4.5l1-1",
  moon: "M13 9.5A5.5 5.5 0 0 1 6.5 3 5.5 5.5 0 1 0 13 9.5z",
  out: "M6 3H3v10h3M7 8h6M10.5 5.5L13 8l-2.5 2.5",
  link: "M6.5 9.5l3-3M7 4.5l1.3-1.3a2.5 2.5 0 0 1 3.5 3.5L10.5 8M9 11.5l-1.3 1.3a2.5 2.5 0 0 1-3.5-3.5L5.5 8",
  check: "M3 8.5l3.5 3.5L13 4.5",
  send: "M8 13V3M4 7l4-4 4 4",
  pause: "M5.5 3v10M10.5 3v10",
  menu: "M2 4h12M2 8h12M2 12h12",
  alert: "M8 2l6.5 11.5h-13zM8 6.5v3M8 11.5v.5",
  tool: "M10 2a4 4 0 0 0-3.6 5.6L2.5 11.5l2 2 3.9-3.9A4 4 0 0 0 14 6l-2.3 1.2L9 5l1.5-3z",
  brain: "M8 3v10M8 4a2 2 0 0 0-3.7-.6A2 2 0 0 0 3 6.7a2 2 0 0 0 .3 3.6A2 2 0 0 0 6 12.7 2 2 0 0 0 8 12M8 4a2 2 0 0 1 3.7-.6A2 2 0 0 1 13 6.7a2 2 0 0 1-.3 3.6 2 2 0 0 1-2.7 2.4A2 2 0 0 1 8 12",
  keys: "M2 4.5h12v7H2zM4.5 7h.5M7.5 7h.5M10.5 7h.5M5 9.5h6",
  trash: "M3 4.5h10M6 4.5V3h4v1.5M4.5 4.5l.6 8.5h5.8l.6-8.5M7 7v4M9 7v4",
  copy: "M6 6h7v7H6zM3 10V3h7",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 16 }: { name: IconName; size?: number }) {
  return (
    <svg class="icon" width={size} height={size} viewBox="0 0 16 16" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

export function Mark() {
  return (
    <svg class="logo" width="20" height="20" viewBox="0 0 20 20" aria-hidden="true">
      <path d="M5 3v14M5 11c0-4 9-2 9-8" />
      <circle cx="5" cy="16" r="2.2" />
      <circle cx="14" cy="4" r="2.2" />
    </svg>
  );
}
