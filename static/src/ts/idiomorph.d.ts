declare module "idiomorph" {
  interface Options {
    morphStyle?: "outerHTML" | "innerHTML";
    ignoreActiveValue?: boolean;
    callbacks?: { beforeNodeMorphed?: (old: Node, fresh: Node) => boolean };
  }
  export const Idiomorph: { morph(old: Element, fresh: Element | string, options?: Options): Node[] };
}
