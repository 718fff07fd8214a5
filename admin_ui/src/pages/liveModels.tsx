// Whose weights are on the device now, who comes and who leaves: beside the arena, as the page of models says it.
import { useMay } from "../api";
import { WeightsBudget, useModels } from "./modelParts";

export function LiveModels() {
  const { data } = useModels(useMay()("models:read"));
  // One model that always stays says nothing that the page does not say already.
  return data === undefined || data.weights_bytes === null || (data.data.length < 2 && data.weights_bytes === 0) ? null : <WeightsBudget of={data} />;
}
