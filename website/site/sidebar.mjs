// The sidebar lists its parts in the order that users of Consul and Nomad know. A part is a page or
// a folder with all its pages, which set their order with `sidebar: { order, label }`.
import { existsSync, readdirSync } from 'node:fs';

const parts = [
	['intro', 'Introduction'],
	['getting-started', 'Getting started'],
	['concepts', 'Concepts'],
	['configuration', 'Configuration'],
	['commands', 'Command line'],
	['api', 'HTTP API'],
	['backends', 'Backends'],
	['integrations', 'Integrations'],
	['operations', 'Operations'],
	['performance', 'Performance'],
	['migrate', 'Migrate'],
	['contributing', 'Contributing'],
	['faq', 'FAQ'],
	['glossary', 'Glossary'],
];

/** @param {URL} docs the folder of the pages */
export default function sidebar(docs) {
	const labels = new Map(parts);
	// Parts that are not listed above come last.
	for (const name of readdirSync(docs).sort()) {
		const part = name.replace(/\.mdx$/, '');
		if (part !== 'index' && !labels.has(part) && (part !== name || existsSync(new URL(`${name}/`, docs)))) {
			labels.set(part, part);
		}
	}
	return [...labels].flatMap(([part, label]) => {
		if (existsSync(new URL(`${part}/`, docs))) {
			// Folders within the part that is open are collapsed.
			const open = part === 'intro';
			return { label, collapsed: !open, autogenerate: { directory: part, collapsed: open } };
		}
		return existsSync(new URL(`${part}.mdx`, docs)) ? { label, slug: part } : [];
	});
}
