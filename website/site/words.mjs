// Prevents line breaks within a flag, an option or a path in running text, because a reader would
// type `-dev` with a space if it were on two lines. Words that do not fit on a phone can still break.
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
