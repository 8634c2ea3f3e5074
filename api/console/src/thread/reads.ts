/** Reads that are asked for by name: each once, a few at a time. One that failed may be asked for again. */

const AT_ONCE = 6;

export class Reads {
  private asked = new Set<string>();
  private queue: (() => Promise<void>)[] = [];
  private working = 0;

  /** Read, unless this was asked for before. */
  once(name: string, read: () => Promise<unknown>): void {
    if (this.asked.has(name)) return;
    this.asked.add(name);
    this.queue.push(() => read().then(() => undefined, () => void this.asked.delete(name)));
    void this.work();
  }

  /** Note what was read in another way. */
  mark(name: string): void {
    this.asked.add(name);
  }

  clear(): void {
    this.asked.clear();
    this.queue = [];
  }

  private async work(): Promise<void> {
    if (this.working >= AT_ONCE) return;
    this.working += 1;
    for (let next = this.queue.shift(); next !== undefined; next = this.queue.shift()) await next();
    this.working -= 1;
  }
}
