/** A list of rows of one height, of which only those in sight are in the page. */

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

export function VirtualList<T>(props: {
  items: readonly T[];
  height: number;
  row: (item: T, index: number) => ComponentChildren;
  onEnd?: (() => unknown) | undefined;
  /** The identity of an item. With it, the rows in sight stay where they are when others come before them. */
  of?: (item: T) => string;
  /** Is told which items are in sight: from index `first` to before `last`. */
  onLook?: ((first: number, last: number) => void) | undefined;
  show?: number;
  role?: "tree" | "list";
  label: string;
  onKeyDown?: (event: KeyboardEvent) => void;
  active?: string | undefined;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 800 });
  const top = useRef<{ id: string; index: number } | null>(null);
  const measure = (): void => {
    const element = box.current;
    if (!element) return;
    const index = Math.floor(element.scrollTop / props.height);
    const item = props.items[index];
    top.current = item !== undefined && props.of ? { id: props.of(item), index } : null;
    const next = { top: index * props.height, height: element.clientHeight };
    setView((old) => (old.top === next.top && old.height === next.height ? old : next));
    if (element.scrollTop + element.clientHeight > element.scrollHeight - 400) props.onEnd?.();
  };
  const latest = useRef(measure);
  latest.current = measure;
  useLayoutEffect(() => {
    const { id, index } = top.current ?? {};
    if (box.current && box.current.scrollTop > 0 && props.of && index !== undefined) {
      const now = props.items.findIndex((each) => props.of?.(each) === id);
      if (now >= 0) box.current.scrollTop += (now - index) * props.height;
    }
    measure();
  }, [props.items]);
  useEffect(() => {
    const watch = new ResizeObserver(() => latest.current());
    if (box.current) watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element || props.show === undefined || props.show < 0) return;
    const top = props.show * props.height;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top + props.height > element.scrollTop + element.clientHeight) element.scrollTop = top + props.height - element.clientHeight;
  }, [props.show]);
  const first = Math.max(0, Math.floor(view.top / props.height) - 10);
  const last = Math.min(props.items.length, Math.ceil((view.top + view.height) / props.height) + 10);
  useEffect(() => props.onLook?.(first, last), [first, last]);
  return (
    <div
      class="virtual"
      ref={box}
      onScroll={measure}
      role={props.role ?? "list"}
      aria-label={props.label}
      tabIndex={0}
      onKeyDown={props.onKeyDown}
      aria-activedescendant={props.active}
    >
      <div role="presentation" class="virtual-inner" style={{ height: `${props.items.length * props.height}px` }}>
        <div role="presentation" class="virtual-window" style={{ transform: `translateY(${first * props.height}px)` }}>
          {props.items.slice(first, last).map((item, n) => props.row(item, first + n))}
        </div>
      </div>
    </div>
  );
}
