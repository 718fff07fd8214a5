// Files: the input and output files of batches, without their contents.
import { PageHead } from "../../kit";
import { FileTable } from "../parts/files";

export default function Files() {
  return (
    <>
      <PageHead
        title="Files"
        note="Input files that tenants uploaded for batches, and the files that batches wrote. Only the tenant's own people and keys can read their contents."
      />
      <FileTable />
    </>
  );
}
