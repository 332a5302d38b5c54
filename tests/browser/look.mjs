// Opens a page in headless Chromium, waits until its text matches a regular expression, and prints the result as JSON:
//   node look.mjs URL REGEX SCREENSHOT
// It uses the packages in the folder MILLPOND_BROWSER.
import { writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

// On Lambda the package brings the libraries that Chromium needs. Use them here too, whatever the machine has.
process.env.AWS_LAMBDA_JS_RUNTIME ??= "nodejs22.x";

const packages = createRequire(`${process.env.MILLPOND_BROWSER}/`);
const load = async (name) => (await import(pathToFileURL(packages.resolve(name)))).default;
const chromium = await load("@sparticuz/chromium");
const { chromium: launcher } = await load("playwright-core");

const [url, wanted, screenshot] = process.argv.slice(2);
const executablePath = await chromium.executablePath();
// The package's own configuration looks for its fonts in /tmp/fonts, wherever it has unpacked them. Without a font Chromium renders no text.
const [fonts, configuration] = [join(tmpdir(), "fonts"), join(tmpdir(), "fonts.conf")];
const folders = `<dir>${fonts}</dir><cachedir>${fonts}-cache</cachedir>`;
writeFileSync(configuration, `<?xml version="1.0"?><fontconfig>${folders}</fontconfig>`);
process.env.FONTCONFIG_FILE = configuration;
const browser = await launcher.launch({ executablePath, args: chromium.args, headless: true, timeout: 0 });
try {
  const page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
  const seen = { errors: [], requests: new Set() };
  page.on("pageerror", (error) => seen.errors.push(error.message));
  page.on("console", (message) => message.type() === "error" && seen.errors.push(message.text()));
  page.on("request", (request) => seen.requests.add(request.url()));
  await page.goto(url, { timeout: 0 });
  const matches = (pattern) => new RegExp(pattern).test(document.body.innerText);
  const found = await page.waitForFunction(matches, wanted, { timeout: 60_000 }).then(() => true, () => false);
  await page.screenshot({ path: screenshot, fullPage: true });
  const [title, text] = [await page.title(), await page.innerText("body")];
  console.log(JSON.stringify({ found, title, text, errors: seen.errors, requests: [...seen.requests] }));
} finally {
  await browser.close();
}
