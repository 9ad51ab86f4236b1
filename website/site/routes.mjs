// Improves Starlight's sidebar: the index page of a folder comes first and does not repeat the
// folder's name, and folders have readable names.
import { defineRouteMiddleware } from '@astrojs/starlight/route-data';

const names = new Map([['vs', 'leno vs …']]);

const depth = (entry) => entry.href.split('/').length;

const links = (entry) => (entry.type === 'group' ? entry.entries.flatMap(links) : [entry]);

function tidy(group) {
	group.label = names.get(group.label) ?? group.label;
	const pages = links(group);
	const index = group.entries.find((page) => page.type === 'link' && pages.every((other) => other === page || (other.href.startsWith(page.href) && depth(other) > depth(page))));
	if (index && group.entries.length > 1) {
		group.entries = [index, ...group.entries.filter((entry) => entry !== index)];
		if (index.label === group.label) index.label = 'Overview';
	}
	group.entries.filter((entry) => entry.type === 'group').forEach(tidy);
}

const holds = (entry) => (entry.type === 'group' ? entry.entries.some(holds) : entry.isCurrent);

export const onRequest = defineRouteMiddleware((context) => {
	const { sidebar, head, entry } = context.locals.starlightRoute;
	const groups = sidebar.filter((part) => part.type === 'group');
	groups.forEach(tidy);

	// Both operations and the API have a page "Health". The title shows which one a bookmark points to.
	const title = head.find(({ tag }) => tag === 'title');
	const part = groups.find(holds);
	if (title && part && part.label !== entry.data.title) {
		title.content = title.content.replace(entry.data.title, `${entry.data.title} · ${part.label}`);
	}
});
