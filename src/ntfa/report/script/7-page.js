// The page: buttons that copy, tables that unfold, and where everything starts.

function copyButtons() {
  for (const element of document.querySelectorAll("[data-copy]")) {
    element.addEventListener("click", () => {
      const selected = document.createRange();
      selected.selectNodeContents(document.getElementById(element.dataset.copy));
      const selection = window.getSelection();
      selection.removeAllRanges();
      selection.addRange(selected);
      // The clipboard's newer interface does not work for files opened from disk.
      const done = document.execCommand("copy");
      element.parentElement.querySelector("[role=status]").textContent = done ? "Copied." : "Selected; press Ctrl+C.";
    });
  }
}

/** Long lists show their first entries, and all of them on request: no scroll areas inside the page's own. */
function fold(root) {
  const most = Number(root.dataset.fold), entries = [...root.querySelectorAll("tbody > tr, :scope > figure")];
  if (entries.length <= most + 3) return;
  const set = (open) => {
    entries.forEach((entry, i) => (entry.hidden = !open && i >= most));
    toggle.textContent = open ? "Show fewer" : `Show all ${entries.length}`;
    toggle.setAttribute("aria-expanded", open);
  };
  const toggle = button("", "Show all, or fewer", () => set(entries.at(-1).hidden));
  toggle.removeAttribute("aria-label");
  root.after(html("p", { class: "live" }, toggle));
  set(false);
}

/** In a notebook the frame grows with what is selected: no scroll areas inside the notebook's own. */
function growFrame() {
  let frame = null;
  try {
    frame = window.frameElement;
  } catch {
    // Some notebooks keep their frames apart; those scroll.
  }
  if (!frame) return;
  new ResizeObserver(() => (frame.style.height = Math.ceil(document.body.getBoundingClientRect().height) + 2 + "px")).observe(document.body);
}

function start() {
  document.documentElement.classList.add("js");
  copyButtons();
  document.querySelectorAll("[data-fold]").forEach(fold);
  const folded = document.querySelectorAll("details.static");
  folded.forEach((element) => (element.open = false));
  window.addEventListener("beforeprint", () => folded.forEach((element) => (element.open = true)));
  const block = document.getElementById("data");
  if (!block) return folded.forEach((element) => (element.open = true));
  window.addEventListener("afterprint", () => folded.forEach((element) => (element.open = false)));
  const page = JSON.parse(block.textContent);
  if (page.volumes) page.volumes = new Volumes(page.volumes);
  document.querySelectorAll("[data-plot]").forEach((root) => new Plot(root, root.dataset.plot, page));
  document.querySelectorAll("[data-brain]").forEach((root) => brainPanel(root, page));
  if ("grow" in document.body.dataset) growFrame();
}

start();
