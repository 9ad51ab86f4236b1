// The site consists of the pages in content/docs. Starlight provides everything else.
//
// LENO_SITE_VERSION is the version that the site documents, which is part of every address.
// LENO_SITE_BASE is the path of the site on its server.
import starlight from '@astrojs/starlight';
import { defineConfig, passthroughImageService } from 'astro/config';
import copy from './site/copy.mjs';
import links from './site/links.mjs';
import sidebar, { moved } from './site/sidebar.mjs';
import words from './site/words.mjs';

const version = process.env.LENO_SITE_VERSION || 'dev';
const base = `${(process.env.LENO_SITE_BASE || '').replace(/\/+$/, '')}/${version}`;
const docs = new URL('content/docs/', import.meta.url);

export default defineConfig({
	srcDir: '.',
	outDir: process.env.LENO_SITE_OUT || `dist/${version}`,
	base,
	trailingSlash: 'always',
	redirects: Object.fromEntries(Object.entries(moved).map(([from, to]) => [`/${from}`, `${base}/${to}/`])),
	// node_modules may be in a cache that other checkouts share, so do not write to it.
	cacheDir: './.cache/astro',
	vite: {
		cacheDir: '.cache/vite',
		server: { fs: { strict: false } },
		// The same setting as in tools/site.
		resolve: { preserveSymlinks: true },
	},
	devToolbar: { enabled: false },
	// Images are published unmodified.
	image: { service: passthroughImageService() },
	markdown: {
		// Readers copy text, so quotes and dots stay as typed.
		smartypants: false,
		remarkPlugins: [[links, { docs, base }]],
		rehypePlugins: [words],
	},
	integrations: [
		starlight({
			title: 'leno',
			description: 'An overlay network for Nomad, Docker and plain hosts, on Consul.',
			social: [{ icon: 'github', label: 'The source of leno', href: 'https://github.com/lenonet/leno' }],
			sidebar: sidebar(docs),
			routeMiddleware: './site/routes.mjs',
			customCss: ['./styles/leno.css'],
			components: { SiteTitle: './components/SiteTitle.astro' },
			expressiveCode: {
				plugins: [copy()],
				tabWidth: 0, // tabs are copied as they are
				// Commands have no window frame.
				defaultProps: { overridesByLang: { 'sh,console': { frame: 'code' } } },
				styleOverrides: { borderRadius: '0.4rem', codeFontSize: 'var(--sl-text-code)', codeLineHeight: '1.6', frames: { shadowColor: 'transparent' } },
			},
			lastUpdated: false,
			credits: false,
			tableOfContents: { minHeadingLevel: 2, maxHeadingLevel: 3 },
		}),
	],
});
