/** The title of the browser's tab. */

import { useEffect } from "preact/hooks";
import { brief } from "../format";
import { visible } from "./long";

/** Call the tab after what the page shows. */
export function useTitle(name: string): void {
  useEffect(() => void (document.title = `${visible(brief(name, 80))} · runyard`), [name]);
}
