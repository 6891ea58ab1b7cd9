// Checks Kubernetes manifests, JSON documents in a list on standard input, against the API's own types: the validators
// that the packages of kubernetes-models make of the published schemas, and, for fields that no schema knows, their
// TypeScript types. Prints one line for each mistake; exit code 1 when there is one.
//
//   node schemas.mjs PREFIX < manifests.json       PREFIX/node_modules has the packages (scripts/setup)

import { readFileSync, writeFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const prefix = process.argv[2];
const modules = join(prefix, "node_modules");
const documents = JSON.parse(readFileSync(0, "utf8"));

// The package of each API group; what is left out is Kubernetes' own.
const PACKAGES = {
  "networking.istio.io": "@kubernetes-models/istio",
  "gateway.networking.k8s.io": "@kubernetes-models/gateway-api",
  "gateway.envoyproxy.io": "@kubernetes-models/envoy-gateway",
  "monitoring.coreos.com": "@kubernetes-models/prometheus-operator",
};

const mistakes = [];
const literals = [];
for (const { file, document } of documents) {
  const name = `${file}: ${document.kind} ${document.metadata?.name}`;
  const path = `${PACKAGES[document.apiVersion.split("/")[0]] ?? "kubernetes-models"}/${document.apiVersion}/${document.kind}`;
  let model;
  try {
    model = (await import(pathToFileURL(join(modules, `${path}.js`)))).default ?? (await import(pathToFileURL(join(modules, `${path}.js`))))[document.kind];
  } catch (error) {
    mistakes.push(`${name}: no schema: ${error.message.split("\n")[0]}`);
    continue;
  }
  try {
    new model(document).validate();
  } catch (error) {
    mistakes.push(`${name}: ${error.message}`);
  }
  literals.push({ name, path, kind: document.kind, document });
  // Envoy Gateway's patch of its Deployment has no type of its own.
  const patch = document.spec?.provider?.kubernetes?.envoyDeployment?.patch?.value;
  if (patch) {
    literals.push({ name: `${name}: patch`, path: "kubernetes-models/apps/v1/Deployment", kind: "Deployment", document: patch, partial: true });
  }
}

// A literal that is given straight to a type may have no field that the type does not know.
const source = literals
  .map(({ path, kind, document, partial }, i) => {
    const type = partial ? `Partial<Omit<I${i}, "spec">> & { spec?: { template?: { spec?: Partial<NonNullable<NonNullable<NonNullable<I${i}["spec"]>["template"]>["spec"]>> } } }` : `I${i}`;
    return `import type { I${kind} as I${i} } from ${JSON.stringify(path)};\nexport const d${i}: ${type} = ${JSON.stringify(document)};`;
  })
  .join("\n");
const file = join(prefix, `manifests-${process.pid}.ts`);
writeFileSync(file, source);
try {
  const ts = createRequire(join(modules, "_"))("typescript");
  const options = { noEmit: true, strict: true, skipLibCheck: true, types: [], target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.NodeNext, moduleResolution: ts.ModuleResolutionKind.NodeNext };
  const program = ts.createProgram([file], options);
  for (const found of ts.getPreEmitDiagnostics(program)) {
    const line = found.file ? found.file.getLineAndCharacterOfPosition(found.start).line : 0;
    const text = ts.flattenDiagnosticMessageText(found.messageText, " ");
    mistakes.push(`${literals[Math.floor(line / 2)]?.name ?? "types"}: ${text}`);
  }
} finally {
  rmSync(file, { force: true });
}

for (const mistake of mistakes) console.log(mistake);
console.log(`${literals.length} documents, ${mistakes.length} mistakes`);
process.exit(mistakes.length ? 1 : 0);
