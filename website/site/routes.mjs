// What Starlight's own sidebar leaves to wish for: the page of a folder comes first in it and
// does not repeat its name, and folders have names for people.
import { defineRouteMiddleware } from '@astrojs/starlight/route-data';

const names = new Map([['vs', 'leno vs …']]);

const depth = (entry) => entry.href.split('/').length;

function tidy(group) {
	group.label = names.get(group.label) ?? group.label;
	const pages = group.entries.filter((entry) => entry.type === 'link');
	const index = pages.find((page) => pages.every((other) => other === page || (other.href.startsWith(page.href) && depth(other) > depth(page))));
	if (index && pages.length > 1) {
		group.entries = [index, ...group.entries.filter((entry) => entry !== index)];
		if (index.label === group.label) index.label = 'Overview';
	}
	group.entries.filter((entry) => entry.type === 'group').forEach(tidy);
}

export const onRequest = defineRouteMiddleware((context) => {
	context.locals.starlightRoute.sidebar.filter((entry) => entry.type === 'group').forEach(tidy);
});
