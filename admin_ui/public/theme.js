// The stored theme, before the first paint. A file of its own: the CSP allows no inline script.
try {
  const theme = localStorage.getItem("laneway.theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch {
  // A browser that refuses storage gets its own theme.
}
