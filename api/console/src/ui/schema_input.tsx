/** The fields for a value that a JSON schema describes. What it has no field for is typed as JSON. */

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { integer, isFinite, parse } from "../json";
import type { Json, JsonObject } from "../types";
import { brief } from "../format";
import { json } from "./long";

const MOST_LEVELS = 6;
const MOST_PROPERTIES = 100;

interface Props {
  schema: JsonObject;
  /** The whole schema, which references name parts of. */
  root: JsonObject;
  /** Undefined: the value is not given. */
  value: Json | undefined;
  /** Undefined: the value is not given any more. */
  onChange: (value: Json | undefined) => void;
  label: string;
  required: boolean;
  level?: number;
}

/** The value with which a form begins. Undefined if the schema requires none. */
export function initial(given: JsonObject, root: JsonObject, level = 0): Json | undefined {
  const { schema } = resolved(given, root);
  if (schema.default !== undefined) return schema.default;
  if (schema.const !== undefined) return schema.const;
  if (Array.isArray(schema.enum)) return schema.enum[0] ?? null;
  if (schema.type === "object") {
    const required = Array.isArray(schema.required) && level < MOST_LEVELS ? schema.required : [];
    const needed = Object.entries(objectOf(schema.properties)).filter(([name]) => required.includes(name));
    return Object.fromEntries(needed.map(([name, each]) => [name, initial(objectOf(each), root, level + 1) ?? null]));
  }
  if (schema.type === "boolean") return false;
  if (schema.type === "integer" || schema.type === "number") return 0;
  if (schema.type === "array") return [];
  return "";
}

export function SchemaInput(props: Props) {
  const { root, value, onChange, required, level = 0 } = props;
  const { schema, nullable } = resolved(props.schema, root);
  const label = typeof schema.title === "string" ? schema.title : props.label;
  const hint = typeof schema.description === "string" ? <small>{schema.description}</small> : null;
  const optional = !required || nullable;
  /** The value of an empty field. */
  const nothing = required && nullable ? null : undefined;
  if (Array.isArray(schema.enum) && schema.enum.length > 0) {
    const options = schema.enum;
    const index = options.findIndex((each) => json(each) === json(value));
    return (
      <label class="labelled">
        <span>{label}</span>
        <select value={String(index)} onChange={(e) => onChange(e.currentTarget.value === "-1" ? nothing : options[Number(e.currentTarget.value)])}>
          {(optional || index < 0) && <option value="-1">–</option>}
          {options.map((each, n) => (
            <option key={n} value={String(n)}>
              {brief(typeof each === "string" ? each : json(each), 200)}
            </option>
          ))}
        </select>
        {hint}
      </label>
    );
  }
  const properties = Object.entries(objectOf(schema.properties));
  if (schema.type === "object" && properties.length > 0 && properties.length <= MOST_PROPERTIES && level < MOST_LEVELS) {
    const given = objectOf(value);
    const needed = Array.isArray(schema.required) ? schema.required : [];
    return (
      <fieldset>
        <legend>{label}</legend>
        {hint}
        {properties.map(([name, each]) => (
          <SchemaInput
            key={name}
            label={name}
            schema={objectOf(each)}
            root={root}
            level={level + 1}
            required={needed.includes(name)}
            value={Object.hasOwn(given, name) ? given[name] : undefined}
            onChange={(next) => onChange(next === undefined ? without(given, name) : { ...given, [name]: next })}
          />
        ))}
      </fieldset>
    );
  }
  if (schema.type === "boolean") {
    return (
      <label class="checked">
        <input type="checkbox" checked={value === true} onChange={(e) => onChange(e.currentTarget.checked)} />
        <span>{label}</span>
        {hint}
      </label>
    );
  }
  if (schema.type === "integer" || schema.type === "number") {
    return <NumberInput whole={schema.type === "integer"} value={value} nothing={nothing} onChange={onChange} label={label} hint={hint} />;
  }
  if (schema.type === "string" || Object.keys(schema).length === 0) {
    return (
      <label class="labelled">
        <span>{label}</span>
        <textarea
          rows={2}
          value={typeof value === "string" ? value : ""}
          onInput={(e) => onChange(e.currentTarget.value === "" && optional ? nothing : e.currentTarget.value)}
        />
        {hint}
      </label>
    );
  }
  return <JsonInput value={value ?? null} onChange={onChange} label={label} />;
}

interface NumberProps {
  whole: boolean;
  value: Json | undefined;
  nothing: null | undefined;
  onChange: (value: Json | undefined) => void;
  label: string;
  hint: ComponentChildren;
}

/** The text is the person's own: a number that is not complete yet, such as `-0.0`, has another text. */
function NumberInput({ whole, value, nothing, onChange, label, hint }: NumberProps) {
  const [text, setText] = useState(String(value ?? ""));
  const sent = useRef(value);
  useEffect(() => {
    if (value !== sent.current) setText(String((sent.current = value) ?? ""));
  }, [value]);
  const typed = (next: string): void => {
    setText(next);
    sent.current = next === "" ? nothing : /^-?\d+$/.test(next) ? integer(next) : Number(next);
    onChange(sent.current);
  };
  return (
    <label class="labelled">
      <span>{label}</span>
      <input type="number" step={whole ? 1 : "any"} value={text} onInput={(e) => typed(e.currentTarget.value)} />
      {hint}
    </label>
  );
}

function JsonInput({ value, onChange, label }: { value: Json; onChange: (value: Json) => void; label: string }) {
  const [text, setText] = useState(json(value));
  const [wrong, setWrong] = useState("");
  const change = (field: HTMLTextAreaElement): void => {
    let reason = "";
    setText(field.value);
    try {
      const found = parse(field.value);
      if (isFinite(found)) onChange(found);
      else reason = "a number is too large";
    } catch (error) {
      reason = `not JSON: ${(error as Error).message}`;
    }
    setWrong(reason);
    field.setCustomValidity(reason); // the form sends nothing
  };
  return (
    <label class="labelled">
      <span>{label} (JSON)</span>
      <textarea class="mono" rows={4} value={text} aria-invalid={wrong !== ""} onInput={(e) => change(e.currentTarget)} />
      {wrong !== "" && (
        <small class="bad-text" role="alert">
          {wrong}
        </small>
      )}
    </label>
  );
}

/** The schema that references, and a choice between one schema or type and null, lead to, and whether null is allowed. */
function resolved(given: JsonObject, root: JsonObject): { schema: JsonObject; nullable: boolean } {
  let schema = given;
  let nullable = false;
  for (let hop = 0; hop < MOST_LEVELS; hop++) {
    const choices = [schema.anyOf, schema.oneOf, schema.allOf].find(Array.isArray)?.map(objectOf) ?? [];
    const others = choices.filter((each) => each.type !== "null");
    const types = Array.isArray(schema.type) ? schema.type.filter((each) => each !== "null") : [];
    if (typeof schema.$ref === "string") schema = { ...referred(schema.$ref, root), ...without(schema, "$ref") };
    else if (others.length === 1) {
      nullable ||= others.length < choices.length;
      schema = { ...(others[0] as JsonObject), ...without(schema, "anyOf", "oneOf", "allOf") };
    } else if (types.length === 1) {
      nullable ||= (schema.type as Json[]).length > 1;
      schema = { ...schema, type: types[0] as Json };
    } else break;
  }
  return { schema, nullable };
}

/** The part of the schema that `#/$defs/Name` names. */
function referred(reference: string, root: JsonObject): JsonObject {
  let found: Json | undefined = root;
  for (const name of reference.split("/").slice(1)) {
    const parent = objectOf(found);
    found = Object.hasOwn(parent, name) ? parent[name] : undefined;
  }
  return objectOf(found);
}

function without(schema: JsonObject, ...names: string[]): JsonObject {
  return Object.fromEntries(Object.entries(schema).filter(([name]) => !names.includes(name)));
}

function objectOf(value: Json | undefined): JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? value : {};
}
