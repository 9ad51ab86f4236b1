// A console block contains commands and their output. The copy button copies only the commands.

// The character that Expressive Code uses to separate the lines of the text to copy.
const newline = '\u007f';

/** Returns the commands of a console block without the prompt, or undefined if there are none. */
export function commands(lines) {
	let more = false;
	const out = lines.flatMap((line) => {
		const start = line.startsWith('$ ');
		if (!start && !more) return [];
		more = line.endsWith('\\');
		return start ? line.slice(2) : line;
	});
	return out.length ? out : undefined;
}

function find(node, wanted) {
	if (wanted(node)) return node;
	for (const child of node.children ?? []) {
		const found = find(child, wanted);
		if (found) return found;
	}
}

export default () => ({
	name: 'copy commands',
	hooks: {
		postprocessRenderedBlock({ codeBlock, renderData }) {
			if (codeBlock.language !== 'console') return;
			const button = find(renderData.blockAst, (node) => node.tagName === 'button' && node.properties?.dataCode !== undefined);
			const text = commands(codeBlock.getLines().map((line) => line.text));
			if (button && text) button.properties.dataCode = text.join(newline);
		},
	},
});
