/** Values that are read again while somebody looks: often while the person is active, seldom when not, never when hidden. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";

const IDLE_AFTER = 60_000;
const IDLE_FACTOR = 5;

let active = Date.now();
for (const type of ["pointerdown", "pointermove", "keydown", "wheel", "focus"]) {
  addEventListener(type, () => (active = Date.now()), { passive: true, capture: true });
}

export interface Live<T> {
  value: T | null;
  error: unknown;
  loading: boolean;
  refresh: () => Promise<void>;
  set: (value: T) => void;
}

/** Act every `every` milliseconds while the person is active and the page is visible. */
export function useWhileActive(act: () => unknown, every: number): void {
  const latest = useRef(act);
  latest.current = act;
  useEffect(() => {
    const timer = setInterval(() => {
      if (!document.hidden && Date.now() - active <= IDLE_AFTER) latest.current();
    }, every);
    return () => clearInterval(timer);
  }, [every]);
}

/** Read a value at once, when `key` changes, and every `every` milliseconds. */
export function useLive<T>(key: string, read: (signal: AbortSignal) => Promise<T>, every: number): Live<T> {
  const [state, setState] = useState<{ key: string; value: T | null; error: unknown; loading: boolean }>({
    key, value: null, error: null, loading: true,
  });
  const latest = useRef({ key, read });
  latest.current = { key, read };
  const abort = useRef<AbortController | null>(null);

  const refresh = useCallback(async (): Promise<void> => {
    abort.current?.abort();
    const own = (abort.current = new AbortController());
    const { key: of, read: by } = latest.current;
    try {
      const value = await by(own.signal);
      if (!own.signal.aborted) setState({ key: of, value, error: null, loading: false });
    } catch (error) {
      if (!own.signal.aborted) setState((old) => ({ key: of, value: old.key === of ? old.value : null, error, loading: false }));
    }
  }, []);

  useEffect(() => {
    let timer = 0;
    let over = false;
    let last = 0;
    const turn = async (): Promise<void> => {
      const due = every * (Date.now() - active > IDLE_AFTER ? IDLE_FACTOR : 1);
      if (!document.hidden && Date.now() - last >= due - 50) {
        await refresh();
        last = Date.now();
      }
      if (!over && every > 0) timer = window.setTimeout(() => void turn(), every);
    };
    const shown = (): void => void (!document.hidden && refresh());
    setState((old) => (old.key === key ? old : { key, value: null, error: null, loading: true }));
    void turn();
    document.addEventListener("visibilitychange", shown);
    return () => {
      over = true;
      clearTimeout(timer);
      abort.current?.abort();
      document.removeEventListener("visibilitychange", shown);
    };
  }, [key, every]);

  const fresh = state.key === key;
  return {
    value: fresh ? state.value : null,
    error: fresh ? state.error : null,
    loading: fresh ? state.loading : true,
    refresh,
    set: (value) => setState({ key, value, error: null, loading: false }),
  };
}
