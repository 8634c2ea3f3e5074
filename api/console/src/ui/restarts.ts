/** Lists that begin again if the API refuses a cursor: once, and once more only after they came further than before. */

import { refusesCursor } from "../api";

export class Restarts {
  /** The pages that were read behind the first one. */
  private pages = 0;
  /** The same when the API last refused a cursor. */
  private refused = -1;

  /** Note that a further page was read. */
  further(): void {
    this.pages += 1;
  }

  /** Whether the list begins again after this error. If not, the error is for the person. */
  after(error: unknown): boolean {
    if (!refusesCursor(error) || this.pages <= this.refused) return false;
    this.refused = this.pages;
    this.pages = 0;
    return true;
  }
}
