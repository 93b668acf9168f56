// Makes dist/: the wire API's files, types of its messages (src/build), and the compiled client.
import { execFileSync } from "node:child_process";
import { cpSync, existsSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const proto = process.env.RESPSD_PROTO ?? join(here, "..", "..", "proto");
const services = ["generation", "policy", "status"].map((name) => `respsd/v1/${name}.proto`);
const run = (command, ...args) =>
  execFileSync(join(here, "node_modules", ".bin", command), args, { cwd: here, stdio: ["ignore", command === "tsc" ? "inherit" : "ignore", "inherit"] });

if (!existsSync(join(proto, services[0]))) throw new Error(`there is no ${services[0]} in ${proto}`);
rmSync(join(here, "dist"), { recursive: true, force: true });
rmSync(join(here, "src", "build"), { recursive: true, force: true });
cpSync(join(proto, "respsd"), join(here, "dist", "proto", "respsd"), { recursive: true });
// The flags are those that src/wire.ts loads the same files with.
run("proto-loader-gen-types", `--includeDirs=${proto}`, "--longs=String", "--enums=String", "--defaults", "--oneofs",
  "--grpcLib=@grpc/grpc-js", "--importFileExtension=.js", "--outDir=src/build", ...services);
run("tsc");
