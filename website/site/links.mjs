// Pages link to each other by file, such as `../operations/index.mdx#health`, so that links also
// work wherever the source is displayed. This plugin converts these links to addresses.
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { slug } from 'github-slugger';
import { visit } from 'unist-util-visit';

/**
 * Returns the address of a page: its path without the extension. The address of an index page is
 * that of its folder.
 *
 * @param {string} path of the page, relative to content/docs
 * @param {string} base of all addresses, without a trailing slash
 */
export function address(path, base) {
	const parts = path.replace(/\.mdx?$/, '').split('/').map((part) => slug(part));
	if (parts.at(-1) === 'index') parts.pop();
	return [base, ...parts, ''].join('/');
}

/**
 * @param {{ docs: URL, base: string }} options the folder of the pages, and the base of
 *   all addresses
 */
export default function links({ docs, base }) {
	return (tree, file) => {
		visit(tree, ['link', 'definition'], (node) => {
			const [, path, rest] = /^([^?#]*)(.*)$/s.exec(node.url);
			if (!path.endsWith('.mdx') || /^[a-z+.-]+:/i.test(path)) return;
			const target = new URL(path, `file://${file.path}`);
			if (!target.href.startsWith(docs.href) || !existsSync(target)) {
				file.fail(`link to ${node.url}: there is no page ${fileURLToPath(target)}`, node);
			}
			node.url = address(decodeURI(target.href.slice(docs.href.length)), base) + rest;
		});
	};
}
