// Lines are not broken within a flag, an option or a path in running text: whoever reads `-dev`
// over two lines types it with a space. Only what would not fit a phone is.
import { SKIP, visit } from 'unist-util-visit';

const longest = 32;

export default function words() {
	return (tree) => {
		visit(tree, 'element', (node) => {
			if (node.tagName === 'pre') return SKIP;
			if (node.tagName !== 'code') return;
			node.children = node.children.flatMap((child) =>
				child.type !== 'text' ? child : child.value.split(/(\s+)/).filter(Boolean).map((value) => {
					const text = { type: 'text', value };
					if (/^\s/.test(value) || value.length > longest) return text;
					return { type: 'element', tagName: 'span', properties: { className: ['word'] }, children: [text] };
				}),
			);
		});
	};
}
