/** A reading that is repeated when somebody asks for it: not too often, one at a time, and again after a failure. */

/** Fewest milliseconds from one reading to the next. */
const BETWEEN = 200;
/** Milliseconds after which a reading that failed is repeated: each time twice as many, but not more than MOST_RETRY. */
const RETRY = 2000;
const MOST_RETRY = 30_000;

export class Repeated {
  private timer = 0;
  private due = 0;
  private begun = -BETWEEN;
  private reading = false;
  private again = false;
  private stopped = false;
  /** How many readings in a row have failed. */
  private failures = 0;

  constructor(private read: () => Promise<void>) {}

  /** Read at the earliest of the times that were asked for. */
  soon(milliseconds: number): void {
    if (this.stopped) return;
    const now = performance.now();
    const due = Math.max(now + milliseconds, this.begun + BETWEEN);
    if (this.timer !== 0 && this.due <= due) return;
    clearTimeout(this.timer);
    this.due = due;
    this.timer = window.setTimeout(() => {
      this.timer = 0;
      void this.now();
    }, due - now);
  }

  /** Read, or once more after the reading that is under way. */
  async now(): Promise<void> {
    if (this.stopped) return;
    if (this.reading) {
      this.again = true;
      return;
    }
    this.reading = true;
    this.begun = performance.now();
    try {
      await this.read();
      this.failures = 0;
    } catch {
      // a hidden page asks nothing; it reads again when its stream is open again
      if (!document.hidden) this.soon(Math.min(RETRY * 2 ** this.failures++, MOST_RETRY));
    } finally {
      this.reading = false;
    }
    if (this.again) {
      this.again = false;
      await this.now();
    }
  }

  start(): void {
    this.stopped = false;
  }

  /** Begin no further reading until `start`, even if one that is under way fails or somebody asks. */
  stop(): void {
    this.stopped = true;
    this.again = false;
    clearTimeout(this.timer);
    this.timer = 0;
  }
}
