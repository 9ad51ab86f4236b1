// What a console shows is commands and what they print; who copies it wants the commands.

// Expressive Code keeps lines of the text to copy apart by this.
const newline = '\u007f';

/** The commands of a console, without the prompt; undefined where there are none. */
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
