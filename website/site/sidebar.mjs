// The sidebar lists the pages in six groups, by what a reader wants to do. Within a group, a page is
// its path. A folder is a path with a label; its pages set their order and labels with `sidebar: { order, label }`.
import { existsSync, readdirSync } from 'node:fs';

const groups = [
	['Start', [
		'intro', 'getting-started', 'integrations/packages', 'integrations/nomad', 'integrations/docker',
		'operations/access-control', 'migrate/flannel', ['intro/vs', 'leno vs …'],
	]],
	['Guides', [
		'guides', 'operations/systemd', 'guides/encrypt', 'operations/networks', 'guides/grow', 'guides/several-networks',
		'guides/monitor', 'operations/upgrade', 'guides/backup', 'operations/leases', 'operations/remove',
		'guides/datacenters', 'guides/automate', 'guides/nomad', 'integrations/cni', 'integrations/consul-template', 'integrations/service-mesh',
		'integrations/kubernetes', 'migrate/stores',
	]],
	['Troubleshooting', [
		'troubleshooting', 'troubleshooting/checks', 'operations/doctor', 'operations/host-faults', 'operations/probe', 'operations/drift',
		'operations/firewall', 'operations/underlays', 'operations/debug',
	]],
	['Reference', [
		'configuration', 'backends', ['commands', 'Command line'], ['api', 'HTTP API'], 'operations/telemetry', 'operations/health',
		'operations/status-page', 'operations/log', 'operations/versions', 'glossary',
	]],
	['Concepts', ['concepts/how-it-works', 'concepts/stores', 'concepts/failure-modes', 'operations/security']],
	['Project', [
		'contributing', 'contributing/failures', 'performance/measurements', 'performance/bench',
	]],
];

/** Labels of pages whose titles say too much or too little beside their group. */
const labels = {
	'integrations/packages': 'Install',
	'integrations/nomad': 'With Nomad',
	'integrations/docker': 'With Docker',
	'migrate/flannel': 'From flannel',
	'operations/networks': 'Change a network',
	'operations/leases': 'Keep or free subnets',
	'operations/remove': 'Remove',
	'operations/systemd': 'Run with systemd',
	'troubleshooting/checks': 'By check',
	'operations/doctor': 'leno doctor',
	'operations/probe': 'Probe hosts',
	'operations/telemetry': 'Metrics',
	'operations/health': 'Checks',
};

/** Pages that moved, with their new addresses. */
export const moved = {
	faq: 'troubleshooting',
	operations: 'guides',
	'performance/testing': 'performance/bench',
};

/** @param {URL} docs the folder of the pages */
export default function sidebar(docs) {
	const file = (path) => [`${path}.mdx`, `${path}/index.mdx`].find((name) => existsSync(new URL(name, docs)));
	const listed = groups.flatMap(([, items]) => items);
	const folders = listed.filter(Array.isArray).map(([folder]) => folder);
	for (const name of readdirSync(docs, { recursive: true })) {
		const path = name.replace(/(\/index)?\.mdx$/, '');
		if (path !== name && path !== 'index' && !listed.includes(path) && !folders.some((folder) => path === folder || path.startsWith(`${folder}/`))) {
			throw new Error(`${name} is not in website/site/sidebar.mjs`);
		}
	}
	return groups.map(([label, items]) => ({
		label,
		collapsed: label !== 'Start',
		items: items.map((item) => {
			if (Array.isArray(item)) return { label: item[1], collapsed: true, autogenerate: { directory: item[0], collapsed: true } };
			if (!file(item)) throw new Error(`website/site/sidebar.mjs: there is no page ${item}`);
			return labels[item] ? { label: labels[item], slug: item } : { slug: item };
		}),
	}));
}
