declare module "idiomorph" {
  interface Options {
    morphStyle?: "outerHTML" | "innerHTML";
    callbacks?: {
      beforeNodeMorphed?: (old: Node, fresh: Node) => boolean;
      beforeAttributeUpdated?: (name: string, element: Element, type: "update" | "remove") => boolean;
    };
  }
  export const Idiomorph: { morph(old: Element, fresh: Element | string, options?: Options): Node[] };
}
