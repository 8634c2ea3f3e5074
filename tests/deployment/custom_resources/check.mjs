// Validates the objects of a JSON file with the validators of their kinds, and writes objects.ts for the check of their types.
import { readFileSync, writeFileSync } from "node:fs";

const packages = {
  "keda.sh": "keda",
  "monitoring.coreos.com": "prometheus-operator",
  "gateway.networking.k8s.io": "gateway-api",
};
const lines = [];
for (const [number, object] of JSON.parse(readFileSync(process.argv[2], "utf8")).entries()) {
  const [group] = object.apiVersion.split("/");
  const module = `@kubernetes-models/${packages[group]}/${object.apiVersion}/${object.kind}`;
  const found = await import(module);
  try {
    new found[object.kind](object).validate();
  } catch (error) {
    console.error(`${object.kind} ${object.metadata.name}: ${error.message}`);
    process.exitCode = 1;
  }
  lines.push(`import type { I${object.kind} as T${number} } from "${module}";`);
  lines.push(`export const object${number}: T${number} = ${JSON.stringify(object, null, 2)};`);
}
writeFileSync("objects.ts", lines.join("\n"));
