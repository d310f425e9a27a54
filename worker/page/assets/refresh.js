// Reloads the page every two seconds, unless the pointer is on a chart or the page is hidden.
const main = document.querySelector('main');
setInterval(async () => {
  if (document.hidden || pointed) return;
  try {
    const answer = await fetch(location.href, { cache: 'no-store' });
    if (!answer.ok) throw new Error(answer.status);
    // Only <main>: a browser would refuse, and report, the style of a page with another nonce.
    const text = await answer.text();
    const shown = text.slice(text.indexOf('<main>'), text.lastIndexOf('</main>'));
    const next = new DOMParser().parseFromString(shown, 'text/html').querySelector('main');
    const open = [...main.querySelectorAll('details')].map(one => one.open);
    next.querySelectorAll('details').forEach((one, n) => { one.open = open[n]; });
    if (!pointed) main.replaceChildren(...next.childNodes);
  } catch {
    const live = document.querySelector('#live');
    live.className = 'lost';
    live.textContent = 'the worker does not answer';
  }
}, 2000);
