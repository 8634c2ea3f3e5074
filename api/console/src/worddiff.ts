/** The words in which two texts differ: the longest common subsequence of their words. */

export interface Piece {
  text: string;
  changed: boolean;
}

const MOST = 600;
/** Texts with a smaller common part than this share of the shorter one are other texts, not changed ones. */
const LEAST_COMMON = 0.3;

export function diffWords(one: string, other: string): [Piece[], Piece[]] {
  const a = one.split(/(\s+)/);
  const b = other.split(/(\s+)/);
  if (one === other) return [[{ text: one, changed: false }], [{ text: other, changed: false }]];
  if (a.length > MOST || b.length > MOST) return [[{ text: one, changed: true }], [{ text: other, changed: true }]];
  const width = b.length + 1;
  const lengths = new Uint16Array((a.length + 1) * width);
  const at = (i: number, j: number): number => lengths[i * width + j] ?? 0;
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) lengths[i * width + j] = a[i] === b[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
  }
  const ours: Piece[] = [];
  const theirs: Piece[] = [];
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      add(ours, a[i++] as string, false);
      add(theirs, b[j++] as string, false);
    } else if (j >= b.length || (i < a.length && at(i + 1, j) >= at(i, j + 1))) add(ours, a[i++] as string, true);
    else add(theirs, b[j++] as string, true);
  }
  const kept = ours.filter((each) => !each.changed).reduce((sum, each) => sum + each.text.trim().length, 0);
  if (kept < LEAST_COMMON * Math.min(one.length, other.length)) return [[{ text: one, changed: true }], [{ text: other, changed: true }]];
  return [phrases(ours), phrases(theirs)];
}

/** The pieces, of which spaces between two changes are changed, too: a phrase is easier to read than its words. */
function phrases(pieces: Piece[]): Piece[] {
  const found: Piece[] = [];
  pieces.forEach((each, n) => {
    const between = !each.changed && each.text.trim() === "" && pieces[n - 1]?.changed === true && pieces[n + 1]?.changed === true;
    add(found, each.text, each.changed || between);
  });
  return found;
}

function add(pieces: Piece[], text: string, changed: boolean): void {
  const last = pieces.at(-1);
  if (last?.changed === changed) last.text += text;
  else pieces.push({ text, changed });
}
