// The site: pages from content/docs, everything else by Starlight.
//
// LENO_SITE_VERSION is the version it tells about, which is a part of every address, and
// LENO_SITE_BASE the path that the site has on its server.
import starlight from '@astrojs/starlight';
import { defineConfig, passthroughImageService } from 'astro/config';
import copy from './site/copy.mjs';
import links from './site/links.mjs';
import sidebar from './site/sidebar.mjs';
import words from './site/words.mjs';

const version = process.env.LENO_SITE_VERSION || 'dev';
const base = `${(process.env.LENO_SITE_BASE || '').replace(/\/+$/, '')}/${version}`;
const docs = new URL('content/docs/', import.meta.url);

export default defineConfig({
	srcDir: '.',
	outDir: process.env.LENO_SITE_OUT || `dist/${version}`,
	base,
	trailingSlash: 'always',
	// node_modules may lie in a cache that other checkouts use too: nothing is written there.
	cacheDir: './.cache/astro',
	vite: {
		cacheDir: '.cache/vite',
		server: { fs: { strict: false } },
		// As Node is told by tools/site.
		resolve: { preserveSymlinks: true },
	},
	devToolbar: { enabled: false },
	// Pictures are published as they are.
	image: { service: passthroughImageService() },
	markdown: {
		// Straight quotes and dots are what people copy.
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
				// Commands are no picture of a window.
				defaultProps: { overridesByLang: { 'sh,console': { frame: 'code' } } },
				styleOverrides: { borderRadius: '0.4rem', codeFontSize: 'var(--sl-text-code)', codeLineHeight: '1.6', frames: { shadowColor: 'transparent' } },
			},
			lastUpdated: false,
			credits: false,
			tableOfContents: { minHeadingLevel: 2, maxHeadingLevel: 3 },
		}),
	],
});
