// Improves Starlight's pages: the index page of a folder comes first in the sidebar and does not
// repeat the folder's name, titles name the group, and the front page has a menu on a phone.
import { defineRouteMiddleware } from '@astrojs/starlight/route-data';

const depth = (entry) => entry.href.split('/').length;

const links = (entry) => (entry.type === 'group' ? entry.entries.flatMap(links) : [entry]);

function tidy(group) {
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
	const route = context.locals.starlightRoute;
	const { sidebar, head, entry } = route;
	const groups = sidebar.filter((part) => part.type === 'group');
	groups.forEach(tidy);

	// The previous and the next page are those of the sidebar as it is shown.
	const pages = sidebar.flatMap(links);
	const current = pages.findIndex((page) => page.isCurrent);
	route.pagination = { prev: current < 0 ? undefined : pages[current - 1], next: current < 0 ? undefined : pages[current + 1] };

	// The front page has no sidebar on a desktop (styles/leno.css), but a menu on a phone.
	if (entry.data.hero) route.hasSidebar = true;

	// Both the reference and the API have a page "Health". The title shows which one a bookmark points to.
	const title = head.find(({ tag }) => tag === 'title');
	const part = groups.find(holds);
	if (title && part && part.label !== entry.data.title) {
		title.content = title.content.replace(entry.data.title, `${entry.data.title} · ${part.label}`);
	}
});
