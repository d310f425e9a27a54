// Fetches the page anew every two seconds, unless somebody reads a chart or looks elsewhere.
const main = document.querySelector('main');
setInterval(async () => {
  if (document.hidden || pointed) return;
  try {
    const answer = await fetch(location.href, { cache: 'no-store' });
    if (!answer.ok) throw new Error(answer.status);
    const next = new DOMParser().parseFromString(await answer.text(), 'text/html').querySelector('main');
    const open = [...main.querySelectorAll('details')].map(one => one.open);
    next.querySelectorAll('details').forEach((one, n) => { one.open = open[n]; });
    if (!pointed) main.replaceChildren(...next.childNodes);
  } catch {
    const live = document.querySelector('#live');
    live.className = 'lost';
    live.textContent = 'the worker does not answer';
  }
}, 2000);
