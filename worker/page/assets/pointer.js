// Shows the numbers of the moment under the pointer in a chart's legend.
const format = {
  bytes(value) {
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
    let unit = value === 0 ? 2 : 0;
    while (value >= 1000 && unit < 4) { value /= 1024; unit++; }
    return `${value < 9.95 ? +value.toFixed(unit === 3 ? 2 : 1) : value.toFixed(0)} ${units[unit]}`;
  },
  ms(value) {
    const [number, unit] = value >= 1000 ? [value / 1000, 's'] : value < 1 && value > 0 ? [value * 1000, 'µs'] : [value, 'ms'];
    return `${number < 9.95 ? +number.toFixed(1) : number.toFixed(0)} ${unit}`;
  },
  count: value => `${value}`,
};
const show = (plot, index) => {
  for (const item of plot.parentElement.querySelectorAll('[data-values]')) {
    const values = item.dataset.values.split(' ');
    const value = values[index ?? values.length - 1];
    if (value) item.querySelector('b').textContent = value === '-' ? '–' : format[plot.dataset.unit](+value);
  }
};
let pointed = null;
const leave = () => {
  if (!pointed) return;
  pointed.querySelector('.cursor')?.remove();
  show(pointed, null);
  pointed = null;
};
document.addEventListener('pointermove', event => {
  const plot = event.target.closest?.('.plot');
  if (plot !== pointed) leave();
  if (!plot || !plot.dataset.at) return;
  pointed = plot;
  const box = plot.getBoundingClientRect(), at = plot.dataset.at.split(' ').map(Number);
  const wanted = (event.clientX - box.left) / box.width;
  let index = 0;
  at.forEach((place, n) => { if (Math.abs(place - wanted) < Math.abs(at[index] - wanted)) index = n; });
  let cursor = plot.querySelector('.cursor');
  if (!cursor) { cursor = document.createElement('span'); cursor.className = 'cursor'; plot.append(cursor); }
  cursor.style.left = `${at[index] * 100}%`;
  show(plot, index);
});
document.addEventListener('pointerleave', leave);
