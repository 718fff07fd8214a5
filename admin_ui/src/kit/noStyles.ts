// In place of react-style-singleton, which puts <style> elements into the page: the CSP refuses them, and nothing here
// needs them (see vite.config.ts).
export const styleSingleton = () => () => null;
export const styleHookSingleton = () => () => undefined;
export const stylesheetSingleton = () => ({ add: () => undefined, remove: () => undefined });
