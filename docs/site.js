// For readers without a mouse or a screen: the theme gives its search no name, and code that scrolls no place for the keyboard.
document$.subscribe(() => {
  document.querySelector("[data-md-component=search]").setAttribute("aria-label", "Search");
  for (const code of document.querySelectorAll("pre > code, .md-typeset__scrollwrap")) code.tabIndex = 0;
});
