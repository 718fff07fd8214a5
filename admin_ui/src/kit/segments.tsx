// A choice of a few values, all of them visible: one button each.

export function Segments<Value extends string>({
  label,
  options,
  value,
  onChange,
}: {
  label: string;
  /** Each value with its words. */
  options: readonly (readonly [Value, string])[];
  value: Value;
  onChange: (value: Value) => void;
}) {
  return (
    <span className="segments" role="group" aria-label={label}>
      {options.map(([option, words]) => (
        <button
          key={option}
          type="button"
          className="button button-quiet"
          aria-pressed={option === value}
          onClick={() => onChange(option)}
        >
          {words}
        </button>
      ))}
    </span>
  );
}
