// Generates the files next to the versions of the site in the published folder:
//
//   versions.json    the names of the versions, newest first
//   index.html       redirects to the newest version
//   latest/…         redirects each page to the same page of the newest version, for permanent links
//   versions/        lists the versions
//   404.html         the 404 page of the newest version
//
//   node versions.mjs FOLDER
//
// To publish a version, add its folder to the existing ones and run this script.
import { cpSync, existsSync, mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

const own = new Set(['latest', 'versions']);

/**
 * Sorts releases first, then pre-releases such as "1.0.0-rc1", which must not become the latest
 * version, each with the newest first. Other versions, such as "dev", come last, by name.
 */
function newestFirst(a, b) {
	const rank = (name) => (/^\d+(\.\d+)*$/.test(name) ? 0 : /^\d+(\.\d+)*-/.test(name) ? 1 : 2);
	return rank(a) - rank(b) || (rank(a) === 2 ? 1 : -1) * a.localeCompare(b, 'en', { numeric: true });
}

/** Returns the pages of a version as paths relative to its folder: "", "api/", … */
function pages(folder) {
	return readdirSync(folder, { recursive: true })
		.filter((path) => path === 'index.html' || path.endsWith('/index.html'))
		.map((path) => path.slice(0, -'index.html'.length))
		.sort();
}

const escape = (text) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);

function html(title, head, body) {
	return `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>${title}</title>
${head}<style>body { max-width: 40rem; margin: 3rem auto; padding: 0 1rem; font: 1.1rem/1.6 system-ui, sans-serif }</style>
<h1>${title}</h1>
${body}
</html>
`;
}

/**
 * Returns a page that redirects to another page, given as a relative path. Only the script
 * preserves the heading in the link.
 */
const redirect = (to) => html('leno', `<link rel="canonical" href="${escape(to)}">
<script>location.replace(${JSON.stringify(to)} + location.hash)</script>
<noscript><meta http-equiv="refresh" content="0; url=${escape(to)}"></noscript>
`, `<p>This page is <a href="${escape(to)}">here</a>.</p>`);

function write(path, text) {
	mkdirSync(dirname(path), { recursive: true });
	writeFileSync(path, text);
}

function versions(folder) {
	const names = readdirSync(folder, { withFileTypes: true })
		.filter((entry) => entry.isDirectory() && !own.has(entry.name) && existsSync(join(folder, entry.name, 'pagefind')))
		.map((entry) => entry.name)
		.sort(newestFirst);
	const newest = names[0];
	if (!newest) throw new Error(`${folder} contains no version of the site`);
	for (const name of own) rmSync(join(folder, name), { recursive: true, force: true });

	write(join(folder, 'versions.json'), JSON.stringify(names) + '\n');
	write(join(folder, 'index.html'), redirect(`${newest}/`));
	const items = names.map((name) => `<li><a href="../${escape(name)}/">${escape(name)}</a>${name === newest ? ', the latest' : ''}</li>`);
	write(join(folder, 'versions/index.html'), html('Versions of leno', '', `<ul>\n${items.join('\n')}\n</ul>`));
	for (const page of pages(join(folder, newest))) {
		write(join(folder, 'latest', page, 'index.html'), redirect('../'.repeat(page.split('/').length) + `${newest}/${page}`));
	}
	cpSync(join(folder, newest, '404.html'), join(folder, '404.html'));
}

versions(process.argv[2] ?? 'dist');
